"""Whether the ranks begin with the same weights. Where they do not, nothing fails, and nothing is learned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hvd_gradflow import events
from hvd_gradflow.device import backend
from hvd_gradflow.reduce.agreement import rows

_told: list[str] = []  # of which scope, once a process


class WeightCheck:
    """Compares the weights of all ranks, by a checksum of each rank's, and warns once if they differ.

    Parameters
    ----------
    reducer : Reducer
    scope : str
        Of the gradients.
    remedy : str
        What to write.
    """

    def __init__(self, reducer: Any, scope: str, remedy: str) -> None:
        self._reducer, self._scope, self._remedy = reducer, scope, remedy
        self._pending: Any = None

    def announce(self, weights: Iterable[np.ndarray]) -> None:
        """Tell the other ranks; on all ranks in the same step, before anything of it is waited for.

        Parameters
        ----------
        weights : iterable of ndarray
            Contiguous; all ranks' in the same order.
        """
        if self._reducer.size == 1:
            return
        checksum = 0
        for array in weights:
            checksum = backend().crc32c(array.reshape(-1).view(np.uint8), checksum)
        self._pending = rows(self._reducer, f"{self._scope}/weights", [float(checksum)])

    def look(self) -> None:
        """Wait for the other ranks, if something was announced, and warn on rank 0."""
        if self._pending is None:
            return
        everyone, self._pending = self._pending.wait(), None
        others = different(everyone)
        if others and not self._reducer.rank and not _told:
            _told.append(self._scope)
            events.warn(
                "%s: ranks %s have other weights than the rest, and equal gradients will not make them equal:"
                " write %s before the first step, on every rank",
                self._scope,
                others,
                self._remedy,
            )


def different(everyone: np.ndarray) -> list[int]:
    """Return the ranks whose checksum is not that of most ranks; of two as frequent the lowest rank's counts.

    Parameters
    ----------
    everyone : ndarray, shape (ranks, 2)
        Checksum, and 1; or 0 and 0 for a rank that has joined, and is left out.
    """
    there = {rank: row[0] for rank, row in enumerate(everyone) if row[1]}
    seen = list(there.values())
    expected = max(there.values(), key=seen.count, default=0.0)  # the first of those
    return [rank for rank, checksum in there.items() if checksum != expected]
