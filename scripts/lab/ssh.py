"""An ssh daemon on every node, with a throw-away key: what mpirun and horovodrun reach other nodes by."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.errors import LabError
from lab.needs import find
from lab.wiring import address

# Both for the lab's own /etc/ssh. Root's ~/.ssh is out of sight in the lab.
SERVER = """\
HostKey /etc/ssh/key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
PrintLastLog no
MaxStartups 500
MaxSessions 500
"""
CLIENT = """\
Host *
    IdentityFile /etc/ssh/key
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking no
    LogLevel ERROR
"""
LISTENING = "0A"  # a state in /proc/net/tcp
PORT = 22


def write(folder: Path, nodes: int, env: Mapping[str, str]) -> None:
    """Write the lab's /etc/ssh; `env`: what sessions find in their environment."""
    subprocess.run(
        [
            find("ssh-keygen") or "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "netlab",
            "-f",
            folder / "key",
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    public = (folder / "key.pub").read_text()
    hosts = ",".join(["node*", *(address(i) for i in range(nodes))])
    (folder / "ssh_known_hosts").write_text(f"{hosts} {public}")
    (folder / "ssh_config").write_text(CLIENT)
    # sshd takes the first SetEnv line only, and has no way to write a quote or the end of a line. To a bash
    # that is told to be an inner one, root's ~/.bashrc, which may put other programs first on PATH, is none
    # of its business.
    words = [f'{name}="{value}"' for name, value in env.items() if not set(value) & set('"\\\n')]
    words.append("SHLVL=1")
    (folder / "sshd_config").write_text(f"{SERVER}SetEnv {' '.join(words)}\n")


def start(pids: Sequence[int]) -> str:
    """Return the hub's script that starts the daemons; `pids`: of the nodes, as the lab sees them."""
    daemon = find("sshd")
    lines = ["mkdir -p -m 755 /run/sshd"]
    lines += [f"nsenter -t {pid} -m -u -i -n {daemon} -f /etc/ssh/sshd_config" for pid in pids]
    return "\n".join(lines)


def wait(processes: Path, pids: Sequence[int], timeout: float) -> None:
    """Wait until all daemons listen; `processes`: the lab's /proc, as seen from here."""
    deadline = time.monotonic() + timeout
    for pid in pids:
        while not _listens((processes / str(pid) / "net/tcp").read_text()):
            if time.monotonic() > deadline:
                raise LabError(f"sshd did not start within {timeout:g} s")
            time.sleep(0.01)


def _listens(table: str) -> bool:
    rows = [line.split() for line in table.splitlines()[1:]]
    return any(row[1].endswith(f":{PORT:04X}") and row[3] == LISTENING for row in rows)
