"""How much each tensor's gradient and its rounding error weigh, over a running window of rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

FORGET_AFTER = 20  # decisions after which a measurement under a codec no longer in use says nothing


@dataclass
class _Sums:
    """Exponentially weighted sums; ``rounds`` is their total weight."""

    energy: float = 0.0
    rounds: float = 0.0
    codec_energy: float = 0.0  # the part of `energy` that was seen under the present codec
    residual: float = 0.0


class Importance:
    """Running statistics of the tensors of one stream.

    Parameters
    ----------
    window : int
        Rounds after which an observation has lost 63 % of its weight.
    """

    def __init__(self, window: int) -> None:
        self._keep = 1.0 - 1.0 / max(window, 1)
        self._sums: dict[str, _Sums] = {}
        self._left: dict[tuple[str, str], tuple[float, int]] = {}

    def observe(self, statistics: Mapping[str, tuple[float, float]]) -> None:
        """Take in one round: name -> (gradient energy, residual energy).

        What is not finite (a loss scale that was too high) or not positive says nothing and is passed over.
        """
        for name in sorted(statistics):
            energy, residual = statistics[name]
            if not (0.0 < energy < math.inf and 0.0 <= residual < math.inf):
                continue
            sums = self._sums.setdefault(name, _Sums())
            sums.energy = sums.energy * self._keep + energy
            sums.rounds = sums.rounds * self._keep + 1.0
            sums.codec_energy = sums.codec_energy * self._keep + energy
            sums.residual = sums.residual * self._keep + residual

    def energy(self, name: str) -> float | None:
        """Mean gradient energy a round, or None where nothing was observed."""
        sums = self._sums.get(name)
        return sums.energy / sums.rounds if sums else None

    def error(self, name: str) -> float | None:
        """Residual energy over gradient energy under the present codec, or None where not observed."""
        sums = self._sums.get(name)
        return sums.residual / sums.codec_energy if sums and sums.codec_energy > 0.0 else None

    def changed(self, name: str, codec: str, decision: int) -> None:
        """Note that `name` leaves `codec` at this decision: its measurement is kept, and a new one begins."""
        error = self.error(name)
        if error is not None:
            self._left[name, codec] = (error, decision)
            self._sums[name].codec_energy = self._sums[name].residual = 0.0

    def remembered(self, name: str, codec: str, decision: int) -> float | None:
        """The error once measured under a codec that `name` left not too long ago, or None."""
        error, when = self._left.get((name, codec), (None, 0))
        return error if decision - when <= FORGET_AFTER else None
