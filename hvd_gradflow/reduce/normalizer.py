"""Gradients in units of their own running size, coordinate by coordinate: ``domain="normalized"``.

Adam and its like divide each coordinate by the root of its running second moment, so an error weighs the more
the smaller its coordinate usually is. A gradient that was divided by the same root before it is encoded, and
is multiplied afterwards, has errors in proportion (docs/codecs.md). The roots come from reduced gradients, so
they are the same on all ranks; a digest of them travels now and then, to make sure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow import device

if TYPE_CHECKING:
    from hvd_gradflow.reduce.floats import Floats

CHECK_EVERY = 64  # rounds between two comparisons of all ranks' second moments
DECAY = 0.99  # of second moments that are kept here, where no optimizer has them
# Coordinates that were (nearly) always zero would be divided by next to nothing: the least root, over the
# root mean square of all. It falls to this by halves, step by step: of few gradients, much of them rounded to
# zero, second moments say little yet.
FLOOR = 2.0**-10
_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_ROOT = 2.0**64  # of a second moment that has overflowed; its coordinate stays finite


@dataclass(frozen=True)
class Entered:
    """What a gradient under way was divided by.

    Attributes
    ----------
    scale : ndarray, optional
        None where nothing was known: the gradient is as it was.
    learns : bool
        Whether a second moment is kept here, none being provided.
    start : int
        Number of the `restart` it follows; after another one nothing is learned from it.
    """

    scale: np.ndarray | None
    learns: bool
    start: int


class Normalizer:
    """Divides gradients by the root of their second moment, and takes residuals along.

    Parameters
    ----------
    provided : callable, optional
        Name to the optimizer's own second moment (any float array of as many elements), or None where it has
        none. For those a moment of the reduced gradients is kept here.
    """

    def __init__(self, provided: Callable[[str], Any] | None = None) -> None:
        self._provided = provided
        self._moments: dict[str, np.ndarray] = {}
        self._scales: dict[str, np.ndarray] = {}  # in whose units the residuals are
        self._seen: dict[str, int] = {}  # how often each was divided
        self._compared: set[str] = set()
        self._starts = 0

    def restart(self) -> None:
        """Forget the moments kept here: after a join, which some ranks have not seen all of.

        Residuals must be in gradient units by then.
        """
        self._moments.clear()
        self._seen.clear()
        self._compared.clear()
        self._starts += 1

    def enter(
        self,
        name: str,
        values: np.ndarray,
        residual: np.ndarray | None,
        finite: bool,
        rescale: np.ndarray | None = None,
    ) -> Entered:
        """Normalize one gradient and its residual, in place, unless nothing is known of it yet.

        With `rescale` the residual, which a reduction under way may be adding to, stays as it is: what it is
        to be multiplied with afterwards is written there.
        """
        moment = None if self._provided is None else self._provided(name)
        learns = moment is None
        if learns:
            moment = self._moments.get(name)
        else:
            self._moments.pop(name, None)
        seen = self._seen.get(name, 0)
        scale = None if moment is None else _root(moment, values.size, max(FLOOR, 2.0**-seen))
        if rescale is not None:
            rescale.fill(1.0)
            self.restore(name, rescale)
            if scale is not None:
                _multiply(np.divide, rescale, scale, True)
            residual = None
        self.restore(name, residual)
        if scale is not None:
            self._scales[name], self._seen[name] = scale, seen + 1
            _multiply(np.divide, values, scale, finite)
            if residual is not None and residual.any():
                _multiply(np.divide, residual, scale, True)
        return Entered(scale, learns, self._starts)

    def leave(self, name: str, values: np.ndarray, finite: bool, entered: Entered) -> None:
        """Bring a reduced gradient back, in place, and learn from it."""
        if entered.scale is not None:
            _multiply(np.multiply, values, entered.scale, finite)
        if entered.learns and finite and entered.start == self._starts:
            self._learn(name, values)

    def restore(self, name: str, residual: np.ndarray | Floats | None) -> None:
        """Bring a residual back to the units of the gradient, in place; on a device none is in others."""
        if residual is not None and not isinstance(residual, np.ndarray):
            return
        scale = self._scales.pop(name, None)
        if scale is not None and residual is not None and residual.any():
            _multiply(np.multiply, residual, scale, True)

    def digest(self, names: Iterable[str], step: int) -> int:
        """Return a number that tells whether two ranks divide by the same; 0 where it is not to be compared.

        That is done for the first time, and every `CHECK_EVERY` steps.
        """
        names = [name for name in names if name in self._scales]
        if step % CHECK_EVERY and self._compared.issuperset(names):
            return 0
        self._compared.update(names)
        kernels, crc = device.backend(), 0
        for name in names:
            crc = kernels.crc32c(self._scales[name].view(np.uint8), crc)
        return crc

    def _learn(self, name: str, values: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            square = np.square(values, dtype=np.float32)
        if not np.isfinite(square).all():
            return
        moment = self._moments.get(name)
        if moment is None or moment.size != values.size:
            moment = self._moments[name] = np.zeros_like(square)
        # From zero: the first gradient, of which much was rounded to zero, weighs no more than others.
        moment *= np.float32(DECAY)
        square *= np.float32(1.0 - DECAY)
        moment += square


def _root(moment: Any, elements: int, floor: float) -> np.ndarray | None:
    """Return what to divide by: positive, finite; None where a moment cannot be of use."""
    view = device.contiguous(moment)
    if view.size != elements:
        return None
    scale = np.empty(elements, np.float32)
    device.backend().load_f32(view, scale)
    with np.errstate(invalid="ignore"):
        np.sqrt(scale, out=scale)
    # Not np.mean, whose order of adding depends on the machine.
    least = np.float32(floor * math.sqrt(device.backend().energy(scale) / max(elements, 1)))
    if not 0.0 < least <= _LARGEST_ROOT:
        return None
    # fmax and fmin take the number where the other is NaN.
    np.fmax(scale, least, out=scale)
    return np.fmin(scale, np.float32(_LARGEST_ROOT), out=scale)


def _multiply(operation: Any, values: np.ndarray, scale: np.ndarray, finite: bool) -> None:
    """Multiply or divide in place; what is finite stays so."""
    with np.errstate(all="ignore"):
        operation(values, scale, out=values)
    if finite:
        np.clip(values, -_LARGEST, _LARGEST, out=values)
