"""The steps whose reductions are under way while later ones compute (``max_staleness``)."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from hvd_gradflow.errors import ConfigError, UnsupportedError

S = TypeVar("S")


def checked(max_staleness: Any, choice: Any) -> int:
    """Return `max_staleness` as a number of steps.

    Raises
    ------
    ConfigError
        If it is not a whole number of at least 0.
    UnsupportedError
        If it is not 0, and `choice` is None: gradients take Horovod's own way.
    """
    if isinstance(max_staleness, bool) or not isinstance(max_staleness, int) or max_staleness < 0:
        raise ConfigError(f"max_staleness={max_staleness!r}: expected a number of steps, 0 or more")
    if max_staleness and choice is None:
        raise UnsupportedError(
            f"max_staleness={max_staleness}: these gradients take Horovod's own way, where a name is under"
            " way once; use MPI and one of hvd.Compression, with op=hvd.Average or hvd.Sum"
        )
    return max_staleness


class Delay(Generic[S]):
    """The last steps, oldest first.

    Parameters
    ----------
    steps : int
        How many may be under way when a step ends.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._under_way: deque[tuple[int, S]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def push(self, step: S, joins: int) -> S | None:
        """Take in the step that ends now; returns the one that is due, or None while there is none.

        Parameters
        ----------
        step
            What waits for its reductions.
        joins : int
            How often all ranks have joined. Of the steps before the last time they have taken different
            numbers, so those are no more.
        """
        self._forget(joins)
        self._under_way.append((joins, step))
        return self.take() if len(self._under_way) > self._steps else None

    def _forget(self, joins: int) -> None:
        while self._under_way and self._under_way[0][0] != joins:
            self._under_way.popleft()

    def take(self, joins: int | None = None) -> S | None:
        """Return the oldest step, and let go of it; None if there is none, since so many joins if given."""
        if joins is not None:
            self._forget(joins)
        return self._under_way.popleft()[1] if self._under_way else None
