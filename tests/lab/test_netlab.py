"""The command, what it leaves behind (nothing), and several labs at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
COMMAND = [sys.executable, str(Path(__file__).resolve().parents[2] / "scripts/netlab.py")]
SPACES = ("net", "mnt", "uts", "ipc", "pid")
SHOW = f"for kind in {' '.join(SPACES)}; do readlink /proc/self/ns/$kind; done; echo ready; sleep 300 & wait"


def netlab(*words, timeout=60, **options):
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        **options,
    )


def inside(spaces):
    """Numbers of the processes that are in any of these namespaces."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        for kind in SPACES:
            try:
                if os.readlink(process / "ns" / kind) in spaces:
                    found.add(int(process.name))
            except OSError:
                continue
    return found


def state_of_the_machine():
    mounts = {tuple(line.split()[3:5]) for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return mounts, sorted(os.listdir("/sys/class/net")), Path("/etc/hosts").read_text()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
    ids=lambda n: str(n),
)
def test_nothing_is_left_of_a_lab_that_is_ended(possible, number, code):
    before = state_of_the_machine()
    lab = subprocess.Popen(
        [*COMMAND, "--launcher", "none", "--delay", "1ms", "--", "sh", "-c", SHOW],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        # Whoever runs the tests in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with lab:
        spaces = set()
        while (line := lab.stdout.readline().strip()) != "ready":
            assert line, "the command did not start"
            spaces.add(line)
        assert len(spaces) == len(SPACES)
        assert len(inside(spaces)) > 5  # nodes, ssh daemons, the delay, the command
        lab.send_signal(number)
        assert lab.wait(20) == code
    deadline = time.monotonic() + (5 if number == signal.SIGKILL else 0)
    while (left := inside(spaces)) and time.monotonic() < deadline:
        time.sleep(0.02)
    # A namespace goes with its last process, unless it is mounted somewhere.
    assert not left
    assert state_of_the_machine() == before


def test_output_and_exit_code_pass_and_bytes_are_printed(possible):
    script = "echo $NETLAB_HOSTS $NETLAB_RATE $NETLAB_INTERFACE; ssh node2 hostname; pwd >&2; exit 7"
    words = (
        "--nodes",
        "3",
        "--slots",
        "2,1,1",
        "--rate",
        "100mbit",
        "--launcher",
        "none",
        "--",
        "sh",
        "-c",
        script,
    )
    done = netlab(*words, cwd="/usr")
    assert done.stdout == "node0:2,node1:1,node2:1 100000000 eth0\nnode2\n"
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert lines[0].startswith("netlab: 3 nodes with 2+1+1 slots, links of 100mbit, ")
    assert lines[1] == "/usr"
    sent = [int(n) for n in re.findall(r"netlab: node\d: (\d+) bytes sent, \d+ received", done.stderr)]
    assert len(sent) == 3
    assert min(sent[0], sent[2]) > 2000 > sent[1]
    assert netlab("--launcher", "none", "--", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rate", "1foo", "--", "true"], "rate '1foo': expected something like 1gbit"),
        (
            ["--nodes", "3", "--slots", "2,1", "--", "true"],
            "slots '2,1': expected one number from 1 up, or 3 of them",
        ),
        (["--loss", "1", "--", "true"], "loss '1': expected the share of packets to lose"),
        (["--delay", "1h", "--", "true"], "delay '1h': expected something like 1ms"),
        (["--mtu", "100", "--", "true"], "mtu 100: expected 576 to 9000 bytes"),
        (["--congestion", "magic", "--", "true"], "congestion control 'magic': this kernel has"),
        (["--nodes", "2"], "write the command after --"),
    ],
)
def test_a_wrong_option_is_one_line(words, sentence):
    done = netlab(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"netlab: {sentence}")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_what_is_missing_is_named(monkeypatch):
    from lab import needs
    from lab.errors import LabError

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        needs.check()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(needs.shutil, "which", lambda tool, path: None if tool in ("sshd", "tc") else tool)
    with pytest.raises(LabError, match=r"apt-get install --no-install-recommends iproute2 openssh-server$"):
        needs.check()


def test_two_labs_at_once(lab, make_lab):
    assert lab.run("node0", ["touch", "/run/netlab/here"], timeout=10).returncode == 0
    with make_lab(nodes=2, rate=None) as other:
        for one in (lab, other):
            assert one.run("node0", ["ssh", "node1", "hostname"], timeout=20).stdout == "node1\n"
        assert lab.run("node1", ["ls", "/run/netlab/here"], timeout=10).returncode == 0
        assert other.run("node1", ["ls", "/run/netlab/here"], timeout=10).returncode != 0
        # Hosts of one know nothing of the other's.
        before = lab.counters()["node1"]
        assert other.run("node0", ["ssh", "node1", "head -c 1000000 /dev/zero"], timeout=20).returncode == 0
        assert other.counters()["node1"]["tx_bytes"] > 1_000_000
        assert lab.counters()["node1"] == before
    assert lab.run("node0", ["ssh", "node1", "hostname"], timeout=20).stdout == "node1\n"


def test_commands_end_at_their_time_with_all_they_started(lab):
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        lab.run("node0", ["sh", "-c", "echo begun; sleep 301 & sleep 302"], timeout=0.5)
    assert caught.value.output == "begun\n"
    left = [
        line
        for line in Path("/proc").glob("[0-9]*/cmdline")
        if _command(line) in (b"sleep\0301\0", b"sleep\0302\0")
    ]
    assert not left
    process = lab.popen("node1", ["sleep", "303"])
    process.send_signal(signal.SIGUSR1)
    assert process.wait(10) == -signal.SIGUSR1
    assert lab.run("node1", ["no-such-program"], timeout=10).returncode == 127


def _command(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
