"""Run one command to its end, with a limit on its time and nothing left of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MARK = "NETLAB_RUN"  # ranks carry it, wherever their launcher put them
GRACE_SECONDS = 3.0


def run(
    popen: Callable[..., subprocess.Popen[bytes]],
    argv: Sequence[str],
    mark: str,
    timeout: float | None,
    capture: bool,
    sweep: bool,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` through `popen`; with `capture` its output is returned as text, else goes where ours goes.

    With `sweep` it ends when its first process does: what that left running is killed.

    Raises
    ------
    subprocess.TimeoutExpired
        With the output so far, once everything that the command started was killed.
    """
    if not capture:
        process = popen(argv, **options)
        try:
            code = process.wait(timeout)
        finally:
            end(process, mark, sweep)
        return subprocess.CompletedProcess(list(argv), code)
    # Files rather than pipes: a rank that outlives its launcher would keep a pipe open, and reading would not
    # end.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        process = popen(argv, **{"stdin": subprocess.DEVNULL, **options, "stdout": out, "stderr": err})
        code = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(process, mark, sweep)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    if code is None:
        raise subprocess.TimeoutExpired(list(argv), timeout or 0, *texts)
    return subprocess.CompletedProcess(list(argv), code, *texts)


def end(process: subprocess.Popen[bytes], mark: str, sweep: bool) -> None:
    """End a command, politely first, then every process that carries its mark (even one that was stopped)."""
    if process.poll() is None:
        sweep = True
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for _ in range(50 if sweep else 0):
        left = marked(mark)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not left:
            return
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """Return the processes of this machine whose environment says that they belong to a command."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # gone by now
            continue
    return found
