"""The few system calls behind namespaces that Python 3.10 and 3.11 do not offer. Standard library only."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process to new namespaces (of processes: its children)."""
    _call("unshare", flags)


def setns(descriptor: int) -> None:
    """Move this process into the namespace behind a file descriptor (of processes: its children)."""
    _call("setns", descriptor, 0)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    """Mount `source` on `target`."""
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        flags,
        data.encode() or None,
    )


def sethostname(name: str) -> None:
    """Name this process's UTS namespace."""
    _call("sethostname", name.encode(), len(name))


def die_with_parent(signal: int) -> None:
    """Have the kernel send `signal` to this process when its parent ends."""
    _call("prctl", PR_SET_PDEATHSIG, signal, 0, 0, 0)
