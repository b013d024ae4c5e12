"""Two ranks in a lab that obey orders, as the bench sees them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from lab.errors import LabError

from links.words import Words

HERE = Path(__file__).resolve().parent
PATIENCE = 300  # seconds that an answer may take


class Pair:
    """A rank on node0 and one on node1; `turn` has them obey.

    Parameters
    ----------
    folder : Path
        Empty; for what they and the bench tell each other.
    """

    def __init__(self, folder: Path) -> None:
        self.words = Words(folder)
        self.processes: list[subprocess.Popen[Any]] = []

    def ready(self) -> None:
        """Wait until they can take an order."""
        self._hear("ready0", "ready1")

    def turn(self, order: dict, connected: Callable[[], None] = lambda: None) -> dict:
        """Have one order obeyed; `connected` is called when only the data remain to be moved.

        Returns
        -------
        dict
            What the receiver found: `bytes` in `seconds`, and what else its carrier tells.
        """
        self.words.say("plan", order)
        self._hear("connected0", "connected1")
        connected()
        self.words.say("go", time.monotonic())  # one machine, one clock
        (found,) = self._hear("found")
        self.words.number += 1
        self.ready()
        return dict(found)

    def end(self) -> None:
        """Send them home."""
        self.words.say("plan")
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _hear(self, *names: str) -> list[Any]:
        end = time.monotonic() + PATIENCE

        def watch() -> None:
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > end:
                what = "ended" if ended else f"did not answer for {PATIENCE} s"
                raise LabError(f"the ranks {what}, asked for {', '.join(names)}; see above")

        return [self.words.hear(name, watch) for name in names]


def ranks(lab: Lab, folder: Path, carriers: Sequence[str]) -> Pair:
    """Start ranks that MPI connects, with these carriers (worker.py); all but Gloo."""
    pair = Pair(folder)
    words = ["mpirun", "-np", "2", "-H", "node0,node1", "--bind-to", "none", "--map-by", "node"]
    words += ["-x", "PYTHONPATH", "-x", "PATH", sys.executable, HERE / "worker.py", folder, *carriers]
    pair.processes.append(lab.popen("node0", words))
    pair.ready()
    return pair


def gloo(lab: Lab, folder: Path) -> Pair:
    """Start ranks that connect by Gloo, anew in each turn."""
    pair = Pair(folder)
    for rank, node in enumerate(lab.hosts[:2]):
        pair.processes.append(lab.popen(node, [sys.executable, HERE / "gloo.py", folder, rank]))
    pair.ready()
    return pair
