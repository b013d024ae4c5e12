"""Run a Python file on several ranks, from tests, with an end to every run.

``mpirun(2, ["tests/mpi/worker.py", "arg"], timeout=60, env={...})`` returns a :class:`Run`. Every process
that a launch started is killed at the timeout: a hang in MPI fails one test and leaves nothing behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_RETURNCODE = 124  # what timeout(1) exits with
GRACE_SECONDS = 3.0
MARK = "MPI_LAUNCHER_RUN"

# More ranks than cores spin against each other unless they yield; Open MPI refuses root unless told twice;
# libraries with thread pools of their own would take every core in each rank. Open MPI 5 reads PRTE_*.
MPI_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONFAULTHANDLER": "1",
}


@dataclass(frozen=True)
class Run:
    """One finished launch; `returncode` is 124 (and `timed_out` true) when it was killed at its timeout."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False

    def check(self) -> Run:
        """Return the run itself; raises AssertionError with its output unless it exited with 0."""
        if self.returncode != 0:
            reason = "killed at its timeout" if self.timed_out else f"exit code {self.returncode}"
            output = f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
            raise AssertionError(f"{reason}: {' '.join(self.command)}\n{output}")
        return self


def mpirun(
    ranks: int,
    script: str | os.PathLike[str] | Sequence[object],
    *args: object,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> Run:
    """Run a Python file under ``mpirun -np ranks``.

    Parameters
    ----------
    ranks : int
        Number of processes; may exceed the number of cores.
    script : path, or sequence
        The file, or the file with its arguments (as Python takes them: ``["-c", code]`` works too).
    *args
        Further arguments.
    timeout : float
        Seconds until the launch and all its processes are killed.
    env : mapping, optional
        Variables on top of this process's own, for every rank; they win over `MPI_ENV`.
    cwd : path, optional
        Working folder; the repository's root by default.
    options : sequence of str
        Further options of mpirun, before the program.
    """
    command = [_tool("mpirun"), "-np", str(ranks), *options, sys.executable, *_words(script, args)]
    return _launch(command, timeout, env, cwd)


def horovodrun(
    ranks: int,
    script: str | os.PathLike[str] | Sequence[object],
    *args: object,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> Run:
    """Run a Python file under ``horovodrun -np ranks --mpi``; parameters as for :func:`mpirun`."""
    command = [_tool("horovodrun"), "-np", str(ranks), "--mpi", *_binding_options(), *options]
    return _launch([*command, sys.executable, *_words(script, args)], timeout, env, cwd)


@lru_cache(maxsize=1)
def open_mpi_major() -> int:
    """Major version of the Open MPI behind `mpirun`; 0 for another MPI."""
    out = subprocess.run(
        [_tool("mpirun"), "--version"], capture_output=True, text=True, check=False, timeout=30
    ).stdout
    words = out.split()
    return int(words[3].split(".")[0]) if out.startswith("mpirun (Open MPI)") else 0


def _binding_options() -> list[str]:
    # horovodrun's own "-bind-to none -map-by slot" is spelled in a way that Open MPI 5 refuses.
    return ["--binding-args=--bind-to none --map-by slot"] if open_mpi_major() >= 5 else []


def _tool(name: str) -> str:
    """The program beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise FileNotFoundError(f"{name} is neither beside {sys.executable} nor on PATH: run `make setup`")
    return found


def _words(script: str | os.PathLike[str] | Sequence[object], args: Sequence[object]) -> list[str]:
    head = [script] if isinstance(script, (str, os.PathLike)) else list(script)
    return [str(word) for word in (*head, *args)]


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    env = {**os.environ, **MPI_ENV, **{k: str(v) for k, v in (extra or {}).items()}}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    # Workers import the helpers that lie beside the tests.
    env["PYTHONPATH"] = os.pathsep.join(
        p for p in (str(ROOT), str(ROOT / "tests"), env.get("PYTHONPATH", "")) if p
    )
    # A test that itself runs inside an MPI process must not pass that membership on.
    for name in [n for n in env if n.startswith(("OMPI_COMM_", "PMIX_", "OMPI_UNIVERSE", "PMI_"))]:
        del env[name]
    return env


def _launch(command: list[str], timeout: float, env: Mapping[str, str] | None, cwd: object) -> Run:
    # Ranks sit in process groups of their own and outlive a killed launcher; this variable finds them.
    mark = uuid.uuid4().hex
    environment = {**_environment(env), MARK: mark}
    # Files rather than pipes: a rank that survives its launcher keeps a pipe open, and a read would not end.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            cwd=str(cwd or ROOT),
            start_new_session=True,
        )
        timed_out = False
        try:
            returncode = process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out, returncode = True, TIMEOUT_RETURNCODE
        finally:
            _end(process, mark)
        out.seek(0)
        err.seek(0)
        return Run(tuple(command), returncode, out.read(), err.read(), timed_out)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End what is left of a launch: its group first, politely, then every process that carries its mark."""
    if process.poll() is None:
        _signal(-process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            _signal(-process.pid, signal.SIGKILL)
            process.wait()
    for pid in _marked(mark):
        # SIGKILL also ends processes that a test stopped with SIGSTOP.
        _signal(pid, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    entry = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # gone by now, or another user's
            continue
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process, or with a negative number its whole group."""
    try:
        if pid < 0:
            os.killpg(-pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def checks_of(program: Path) -> set[str]:
    """Return the names of the checks in a program of ``tests/mpi``."""
    return set(re.findall(r"^@check\ndef (\w+)", program.read_text(), re.MULTILINE))


def all_ok(run: Run, names: Iterable[str]) -> None:
    """Assert that a launch of such a program ended well, and that these checks, no others, were made."""
    run.check()
    assert set(re.findall(r"\bOK (\w+) [0-9.]+ s", run.stdout)) == set(names), run.stdout + run.stderr
