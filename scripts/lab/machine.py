"""What a lab takes over from the machine, and what it hides of it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from lab.errors import LabError

PREFERRED = "cubic"  # what most clusters run


def congestion(wanted: str | None) -> str | None:
    """Return the congestion control to use; None where the kernel does not tell which it has."""
    base = Path("/proc/sys/net/ipv4")
    try:
        known = (base / "tcp_available_congestion_control").read_text().split()
        default = (base / "tcp_congestion_control").read_text().strip()
    except OSError:
        return wanted
    if wanted and wanted not in known:
        raise LabError(f"congestion control {wanted!r}: this kernel has {', '.join(known)}")
    return wanted or (PREFERRED if PREFERRED in known else default)


def private() -> list[str]:
    """Return folders that are to be empty in the lab: settings of ssh, what horovodrun knows of hosts."""
    homes = {pwd.getpwuid(0).pw_dir, os.path.expanduser("~")}
    for home in homes:
        # horovodrun would make it, and keep what it learned of one lab's node0 for the next one's.
        Path(home, ".horovod").mkdir(exist_ok=True)
    return [
        str(path) for home in homes for name in (".ssh", ".horovod") if (path := Path(home, name)).is_dir()
    ]
