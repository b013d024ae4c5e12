"""``auto`` on a link that really becomes slow, and fast again."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
PROGRAM = Path(__file__).with_name("auto_worker.py")
PATIENCE = 90.0  # probes and windows of steps, on a busy machine


class Job:
    """Two ranks that step on, and what they have said so far."""

    def __init__(self, lab, stop: Path, allow: str) -> None:
        from lab import environment, launchers

        self.stop = stop
        names = environment.forwarded(lab._environment(None), {})
        words = launchers.command(
            "mpirun", [sys.executable, str(PROGRAM), str(stop), allow], 2, lab.hostlist, [*names]
        )
        self.process = lab.popen(
            "node0", words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def codec(self) -> str | None:
        """What the last step was encoded with."""
        return next((m[1] for line in reversed(self.lines) if (m := re.match(r"step \d+ (\w+)", line))), None)

    def until(self, expected: set[str]) -> None:
        """Wait for one of these codecs, which must come while the job runs."""
        deadline = time.monotonic() + PATIENCE
        while self.codec() not in expected:
            assert self.process.poll() is None and time.monotonic() < deadline, "".join(self.lines[-40:])
            time.sleep(0.05)

    def steps(self, count: int) -> None:
        """Wait for so many more steps."""
        deadline, enough = time.monotonic() + PATIENCE, len(self.lines) + count
        while len(self.lines) < enough:
            assert self.process.poll() is None and time.monotonic() < deadline, "".join(self.lines[-40:])
            time.sleep(0.05)

    def end(self) -> None:
        self.stop.touch()
        try:
            assert self.process.wait(timeout=30) == 0, "".join(self.lines[-40:])
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join(10)
            self.process.stdout.close()


def test_a_link_that_slows_down_is_met_with_fewer_bits_until_it_is_fast_again(make_lab, tmp_path):
    """Between none and a codec that costs much computing: what is worth it differs with the link."""
    with make_lab(nodes=2, slots=1, rate=None) as lab:
        job = Job(lab, tmp_path / "stop", "none,deadzone")
        try:
            job.until({"none"})
            job.steps(12)
            for node in lab.hosts:
                lab.set_rate(node, "20mbit")
            job.until({"deadzone"})
            for node in lab.hosts:
                lab.set_rate(node, None)
            job.until({"none"})
        finally:
            job.end()
    told = [line for line in job.lines if line.startswith("Compression.auto for w: ")]
    assert len(told) >= 3, "".join(told)
    assert any("times as long as at first" in line and "chosen: deadzone for 1 MB" in line for line in told)
