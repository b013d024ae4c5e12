"""How fast a stream's rounds go, and whether that has changed (docs/architecture.md, "Measured choice")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

SETTLING = 2  # rounds after a decision that say nothing: residuals and steps are new
IN_A_ROW = 2  # windows that must differ alike before it counts
FAR = 4.0  # factor between first window and prediction beyond which the prediction was wrong
LEAST = 1e-3  # seconds of a round; what takes less is not worth a measurement


def busy(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the time in which at least one of some intervals (begin, end) runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


@dataclass(frozen=True)
class Window:
    """Medians over some rounds: time over what was predicted, and the time itself in seconds."""

    pace: float
    seconds: float


class Pace:
    """One stream's rounds, window after window.

    Parameters
    ----------
    window : int
        Rounds.
    drift : float
        Factor that counts as a change.
    """

    def __init__(self, window: int, drift: float) -> None:
        self._window, self._drift = window, drift
        self.restart()

    def restart(self) -> None:
        """Begin anew: the next window is what later ones are compared to."""
        self._skip = SETTLING
        self._rounds: list[tuple[float, float]] = []
        self._first: Window | None = None
        self._off = 0  # windows in a row that were slower (positive) or faster (negative)

    def add(self, seconds: float, predicted: float) -> Window | None:
        """Take in one round; returns a window when it is complete."""
        if predicted <= 0.0:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._rounds.append((seconds / predicted, seconds))
        if len(self._rounds) < self._window:
            return None
        rounds, self._rounds = self._rounds, []
        return Window(median(r[0] for r in rounds), median(r[1] for r in rounds))

    def changed(self, window: Window) -> float | None:
        """Take in a window that all ranks agree on; returns by which factor it is slower, if that counts."""
        if self._first is None:
            as_predicted = 1.0 / FAR <= window.pace <= FAR
            self._first = window if as_predicted else Window(1.0, window.seconds)
            if as_predicted:
                return None
        first = self._first
        factor = window.pace / first.pace
        if max(window.seconds, first.seconds) < LEAST or 1.0 / self._drift <= factor <= self._drift:
            self._off = 0
            return None
        way = 1 if factor > 1.0 else -1
        self._off = self._off + way if self._off * way > 0 else way
        return factor if abs(self._off) >= IN_A_ROW else None
