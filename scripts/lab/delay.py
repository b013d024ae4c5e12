"""Delay on the links, without netem: a program between two TAP devices a link, built when needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from lab.errors import LabError

SOURCE = Path(__file__).with_name("delay.cpp")
BUILT = SOURCE.parent.parent.parent / "build" / "lab"
BUILD_SECONDS = 300
LEAST_QUEUE = 8 * 2**20
MOST_QUEUE = 256 * 2**20
FASTEST = 10 * 10**9  # bits per second, of a link without a limit


def program() -> Path:
    """Return the path of the program, compiled from its source unless it is there already."""
    name = f"delay-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    built = BUILT / name
    if built.exists():
        return built
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise LabError("a delay needs a C++ compiler: apt-get install --no-install-recommends g++")
    BUILT.mkdir(parents=True, exist_ok=True)
    part = built.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [*compiler.split(), "-std=c++17", "-O2", "-o", part, SOURCE],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise LabError(f"could not compile {SOURCE}: {' '.join(done.stderr.split())}")
    part.replace(built)
    return built


def start(delay: float, rate: int | None, links: int) -> str:
    """Return the script that makes the devices ``far<i>`` and ``port<i>`` and carries packets between them.

    Parameters
    ----------
    delay : float
        Seconds from one end of a link to the other.
    rate : int or None
        Bits per second that pass; what is under way at four times that rate fits into the queue.
    links : int
        Their number.
    """
    if not Path("/dev/net/tun").exists():
        raise LabError("a delay needs /dev/net/tun, which this machine does not have: modprobe tun")
    queue = min(MOST_QUEUE, max(LEAST_QUEUE, round(4 * (rate or FASTEST) / 8 * delay)))
    return f"'{program()}' {round(delay * 1e9)} {queue} {links}"
