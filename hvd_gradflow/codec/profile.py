"""What codecs were measured to cost: seconds of a reduction, by codec and size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec


@dataclass(frozen=True)
class Fit:
    """Seconds of one reduction, as a line over its bytes.

    Attributes
    ----------
    latency : float
        Seconds, whatever the size.
    per_byte : float
        Seconds for each byte of uncompressed gradient.
    errors : tuple of (int, float)
        Sizes that were measured, and the standard errors of their times in seconds.
    """

    latency: float
    per_byte: float
    errors: tuple[tuple[int, float], ...] = ()

    def seconds(self, size: float) -> float:
        """Return the time of a reduction of `size` uncompressed bytes."""
        return self.latency + self.per_byte * size

    def error(self, size: float) -> float:
        """Return the standard error of :meth:`seconds`, as the errors of the two sizes lay it down."""
        if not self.errors:
            return 0.0
        (small, low), (large, high) = self.errors[0], self.errors[-1]
        if small == large or self.latency == 0.0:
            return high * size / large
        share = (size - small) / (large - small)
        low, high = (1.0 - share) * low, share * high
        return math.sqrt(low * low + high * high)  # as exact on every machine, which hypot is not


def fit(times: Mapping[int, Sequence[float]]) -> Fit:
    """Fit a line to measurements.

    Parameters
    ----------
    times : mapping of int to sequence of float
        Uncompressed bytes to seconds, some of each of one or two sizes. With one size, or where a line would
        begin below zero or fall, it goes through zero and the larger size. Where it would fall, something
        disturbed all of the small ones, and may have disturbed the large ones as much: that is their error.
    """
    sizes = sorted(times)
    small, large = sizes[0], sizes[-1]
    low, high = usual(times[small])[0], usual(times[large])[0]
    errors = tuple((size, usual(times[size])[1]) for size in sizes)
    if small == large:
        return Fit(0.0, high / large, errors)
    if high < low:
        return Fit(0.0, high / large, tuple((size, max(error, low - high)) for size, error in errors))
    slope = (high - low) / (large - small)
    latency = low - slope * small
    return Fit(latency, slope, errors) if latency >= 0.0 else Fit(0.0, high / large, errors)


def usual(values: Sequence[float]) -> tuple[float, float]:
    """Return what some equal things take when nothing disturbs them, and how far off that may be.

    Disturbances only add. So it is the lower quartile that tells; its error is estimated by how far the
    median lies above the least, over the root of their number.
    """
    ordered, n = sorted(values), len(values)
    return ordered[(n - 1) // 4], (median(ordered) - ordered[0]) / math.sqrt(n)


@dataclass(frozen=True)
class Profile:
    """What the codecs cost on one reducer; the same on all its ranks.

    Attributes
    ----------
    fits : mapping of Codec to Fit
        One for each codec that was measured.
    cost : float
        Seconds that measuring took.
    where : str
        What was measured, in words: "2 nodes".
    """

    fits: Mapping[Codec, Fit]
    cost: float = 0.0
    where: str = ""

    def covers(self, codecs: Sequence[Any]) -> bool:
        """Return whether all of these were measured."""
        return all(codec in self.fits for codec in codecs)

    def seconds(self, codec: Any, size: float) -> float:
        """Return the time of a reduction of `size` uncompressed bytes (as float32) with a codec."""
        return self.fits[codec].seconds(size)
