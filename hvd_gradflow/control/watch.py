"""How long an error or a loss has been too large."""

from __future__ import annotations

import math


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
    """The mean loss of each window beside the best one so far.

    Parameters
    ----------
    limit : float, optional
        Part of the best loss by which it may be exceeded.
    patience : int
        Windows in a row, above that, which are trouble enough.

    Attributes
    ----------
    best : float or None
        The lowest so far, since the last trouble: what came after is measured against what came after.
    """

    def __init__(self, limit: float | None, patience: int) -> None:
        self._limit, self._patience = limit, patience
        self.best: float | None = None
        self._bad = 0

    def observe(self, loss: float) -> bool | None:
        """Take in the mean of a window; None: good enough, False: too high, True: for too long."""
        if self.best is None or loss < self.best:
            self.best = loss
        if self._limit is None or loss - self.best <= self._limit * abs(self.best):
            self._bad = 0
            return None
        self._bad += 1
        if self._bad < self._patience:
            return False
        self.best, self._bad = None, 0
        return True
