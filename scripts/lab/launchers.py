"""Command lines that start a program on every slot of a lab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from lab.errors import LabError
from lab.needs import find

LAUNCHERS = ("mpirun", "horovodrun", "none")


def command(
    launcher: str, argv: Sequence[str], slots: int, hostlist: str, forward: Iterable[str]
) -> list[str]:
    """Return the command that runs `argv` on all slots, to be given on the first node.

    Parameters
    ----------
    launcher : {"mpirun", "horovodrun", "none"}
        None: the program itself, once.
    slots : int
        Ranks in all.
    hostlist : str
        As ``node0:2,node1:1``.
    forward : iterable of str
        Names of variables that mpirun is to hand to all ranks; horovodrun hands on all it has.
    """
    if launcher == "none":
        return list(argv)
    if launcher == "mpirun":
        names = [word for name in forward for word in ("-x", name)]
        # Ranks have threads besides the one that computes.
        binding = ["--bind-to", "none", "--map-by", "slot"]
        return [_tool("mpirun"), "-np", str(slots), "-H", hostlist, *binding, *names, *argv]
    if launcher == "horovodrun":
        # horovodrun's own "-bind-to none -map-by slot" is spelled in a way that Open MPI 5 refuses.
        extra = ["--binding-args=--bind-to none --map-by slot"] if _open_mpi() >= 5 else []
        return [_tool("horovodrun"), "-np", str(slots), "-H", hostlist, *extra, *argv]
    raise LabError(f"launcher {launcher!r}: expected one of {', '.join(LAUNCHERS)}")


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else find(name)
    if not found:
        raise LabError(f"{name} is neither beside {sys.executable} nor on PATH: run 'make setup'")
    return found


@lru_cache(maxsize=1)
def _open_mpi() -> int:
    """Major version of the Open MPI behind mpirun; 0 for another MPI."""
    out = subprocess.run(
        [_tool("mpirun"), "--version"], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    words = out.split()
    return int(words[3].split(".")[0]) if out.startswith("mpirun (Open MPI)") else 0
