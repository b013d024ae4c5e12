"""What the loops share: how many steps there are, the learning rate's schedule, and the line of progress."""

from __future__ import annotations

import argparse
import sys
import time

from .options import UsageError


class Progress:
    """A line on rank 0's terminal; nothing where there is none."""

    def __init__(self, on: bool, total: int) -> None:
        self._on = on and sys.stderr.isatty()
        self._total, self._shown = total, 0.0

    def step(self, done: int, text: str) -> None:
        now = time.monotonic()
        if self._on and (now - self._shown > 0.1 or done == self._total):
            self._shown = now
            bar = "#" * (30 * done // self._total)
            print(f"\r[{bar:<30}] {done}/{self._total} {text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._on:
            print(file=sys.stderr)


def steps_of(samples: int, size: int, options: argparse.Namespace) -> tuple[int, int]:
    """Optimizer steps in one pass over the data, and in all; the same on all ranks."""
    mine = samples // size
    a_pass = mine // (options.batch_size * options.backward_passes)
    if a_pass == 0:
        raise UsageError(
            f"{mine} samples a rank make no step of {options.backward_passes} x {options.batch_size}: "
            "lower --batch-size or --backward-passes, or raise --limit"
        )
    return a_pass, options.steps or a_pass * options.epochs


def schedule(done: int, total: int) -> float:
    """A linear warm-up over a tenth of the steps, then linear down to zero."""
    warm = max(1, total // 10)
    return min((done + 1) / warm, (total - done) / max(1, total - warm))
