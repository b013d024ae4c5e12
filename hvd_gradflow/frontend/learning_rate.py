"""The linear scaling rule for the ranks of a front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_gradflow.control.learning_rate import REFERENCE_BATCH
from hvd_gradflow.control.learning_rate import scaled_lr as scaled


def rule_for(everyone: Callable[[], Any]) -> Callable[..., float]:
    """Return ``scaled_lr`` of a front end.

    Parameters
    ----------
    everyone : callable
        Returns the process set of all ranks.
    """

    def scaled_lr(
        base: float, batch: int, reference_batch: int = REFERENCE_BATCH, process_set: Any = None
    ) -> float:
        """Return `base` · ranks · `batch` / `reference_batch`; see :func:`hvd_gradflow.control.scaled_lr`.

        Parameters
        ----------
        base, batch, reference_batch
            As there: `batch` is that of one rank.
        process_set : ProcessSet, optional
            Whose gradients are averaged; all ranks by default.
        """
        return scaled(base, batch, reference_batch, int((process_set or everyone()).size()))

    return scaled_lr
