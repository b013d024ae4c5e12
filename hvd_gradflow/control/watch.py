"""How long an error or a loss has been too large."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

_DIFFERENCES, _ENOUGH = 32, 8  # between windows: how many are looked at, and how many tell something


class ErrorWatch:
    """Residual energy over gradient energy of one layer, window by window.

    Parameters
    ----------
    limit : float, optional
        Above which a window is bad; None: none is.
    window : int
        Observations of one window.
    patience : int
        Bad windows in a row that are trouble enough.
    """

    def __init__(self, limit: float | None, window: int, patience: int) -> None:
        self._limit, self._window, self._patience = limit, window, patience
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: it was of another code."""
        self._bad = 0
        self._begin()

    def _begin(self) -> None:
        self._seen, self._gradient, self._residual = 0, 0.0, 0.0

    def observe(self, gradient: float, residual: float) -> float | None:
        """Take in the energies of a round.

        What is not finite (a loss scale that was too high) or not positive says nothing and is passed over.

        Returns
        -------
        float or None
            None: nothing to complain of. 0: a bad window ended. Else `patience` of them have, and this is the
            ratio in the last.
        """
        if self._limit is None or not (0.0 < gradient < math.inf and 0.0 <= residual < math.inf):
            return None
        self._seen += 1
        self._gradient += gradient
        self._residual += residual
        if self._seen < self._window:
            return None
        ratio = self._residual / self._gradient
        self._begin()
        if not ratio > self._limit:
            self._bad = 0
            return None
        self._bad += 1
        if self._bad < self._patience:
            return 0.0
        self._bad = 0
        return ratio


class LossWatch:
    """The mean loss of each window beside the best level so far.

    A level is the mean of the last `patience` windows. Losses of batches differ, and the least of many is
    well below their mean: so a window is too high only if it exceeds the best level by three standard
    deviations of windows, too, once eight differences between neighbours tell these (their median magnitude
    is 0.954 of one under Gaussian noise, whatever the trend).

    Parameters
    ----------
    limit : float, optional
        Part of the best level by which it may be exceeded.
    patience : int
        Windows in a row, above that, which are trouble enough.

    Attributes
    ----------
    best : float or None
        The lowest level so far, since the last trouble: what came after is measured against what came after.
    """

    def __init__(self, limit: float | None, patience: int) -> None:
        self._limit, self._patience = limit, patience
        self.best: float | None = None
        self._bad = 0
        self._last: deque[float] = deque(maxlen=patience)
        self._differences: deque[float] = deque(maxlen=_DIFFERENCES)

    def observe(self, loss: float) -> bool | None:
        """Take in the mean of a window; None: good enough, False: too high, True: for too long.

        One that is not finite is too high.
        """
        if math.isfinite(loss):
            if self._last:
                self._differences.append(abs(loss - self._last[-1]))
            self._last.append(loss)
            level = math.fsum(self._last) / len(self._last)
            if self.best is None or level < self.best:
                self.best = level
        if self._limit is None or (self.best is not None and loss - self.best <= self._allowed()):
            self._bad = 0
            return None
        self._bad += 1
        if self._bad < self._patience:
            return False
        self.best, self._bad = None, 0
        self._last.clear()
        return True

    def _allowed(self) -> float:
        assert self._limit is not None and self.best is not None
        allowed = self._limit * abs(self.best)
        if len(self._differences) >= _ENOUGH:
            allowed += 3 * median(self._differences) / 0.954
        return allowed
