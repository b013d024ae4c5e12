"""What a lab needs of the machine, said in one line where it is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from lab.errors import LabError

PACKAGES = {  # Debian's, by program
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "nsenter": "util-linux",
    "iptables-restore": "iptables",
    "ethtool": "ethtool",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
ALWAYS = ("ip", "tc", "bridge", "nsenter", "ssh", "ssh-keygen", "sshd")
LOSS = ("iptables-restore", "ethtool")
SLURM = ("munged", "slurmctld", "slurmd", "sbatch")
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def find(tool: str) -> str | None:
    """Return the path of a program of the system; root's tools need not be on PATH."""
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":" + SYSTEM_PATH)


def check(tools: tuple[str, ...] = ALWAYS) -> None:
    """Raise `LabError` unless this is Linux, this is root, and the tools are there."""
    if sys.platform != "linux":
        raise LabError(f"a lab is made of Linux namespaces; this is {sys.platform}")
    if os.geteuid() != 0:
        raise LabError("a lab needs root (it makes network namespaces): try again with sudo")
    missing = sorted({PACKAGES[tool] for tool in tools if not find(tool)})
    if missing:
        raise LabError(f"missing programs: apt-get install --no-install-recommends {' '.join(missing)}")
    if not Path("/proc/self/ns/net").exists():
        raise LabError("this kernel has no network namespaces")


def reason(tools: tuple[str, ...] = ALWAYS) -> str | None:
    """Return why no lab can be made here, or None."""
    try:
        check(tools)
    except LabError as error:
        return str(error)
    return None
