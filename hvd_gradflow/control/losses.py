"""What a training loop reports of its loss: read by several streams, each from where it was."""

from __future__ import annotations

import math
from typing import Any

from hvd_gradflow.errors import ConfigError

PENDING = 256  # reports that are kept as they came, until they are turned into numbers


class Losses:
    """The sum and the number of all reports so far; those that are not finite do not count."""

    def __init__(self) -> None:
        self._pending: list[Any] = []
        self._sum = 0.0
        self._count = self._wild = 0

    def report(self, loss: Any) -> None:
        """Take in one loss: a number, or a tensor of one element, which is copied and read later.

        Raises
        ------
        ConfigError
            If it is something else.
        """
        if hasattr(loss, "detach"):
            if loss.numel() != 1:
                raise ConfigError(f"a loss of shape {tuple(loss.shape)}: report one number, such as its mean")
            self._pending.append(loss.detach().clone())
        else:
            try:
                self._pending.append(float(loss))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"loss {loss!r:.60}: expected a number ({error})") from error
        if len(self._pending) > PENDING:
            self._settle()

    def _settle(self) -> None:
        pending, self._pending = self._pending, []
        values = [float(loss) for loss in pending]
        finite = [value for value in values if math.isfinite(value)]
        self._sum += math.fsum(finite)
        self._count += len(finite)
        self._wild += len(values) - len(finite)

    def totals(self) -> tuple[float, int, int]:
        """Return the sum of all finite losses that were reported, their number, and that of the others."""
        self._settle()
        return self._sum, self._count, self._wild


class Reader:
    """Tells of the reports since it was asked last."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._read = losses.totals()

    def new(self) -> tuple[float, int, int]:
        """Return sum and number of the reports since the last call, and the number of those not finite."""
        before, self._read = self._read, self._losses.totals()
        return self._read[0] - before[0], self._read[1] - before[1], self._read[2] - before[2]
