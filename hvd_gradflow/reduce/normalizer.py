"""Gradients in units of their own running size, coordinate by coordinate: ``domain="normalized"``.

Adam and its like divide each coordinate by the root of its running second moment, so an error weighs the more
the smaller its coordinate usually is. A gradient that was divided by the same root before it is encoded, and
is multiplied afterwards, has errors in proportion (docs/codecs.md). The roots come from reduced gradients, so
they are the same on all ranks; a digest of them travels now and then, to make sure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hvd_gradflow import device

CHECK_EVERY = 64  # rounds between two comparisons of all ranks' second moments
DECAY = 0.99  # of second moments that are kept here, where no optimizer has them
# Coordinates that were (nearly) always zero would be divided by next to nothing: the least root, over the
# root mean square of all.
FLOOR = 2.0**-10


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
        self._scales: dict[str, np.ndarray] = {}  # in whose units the residual is, and the values under way

    def enter(self, name: str, values: np.ndarray, residual: np.ndarray | None) -> bool:
        """Normalize one gradient and its residual, in place; False where nothing is known of it yet."""
        scale = self._scale(name, values.size)
        self.restore(name, residual)
        if scale is None:
            return False
        self._scales[name] = scale
        with np.errstate(all="ignore"):
            values /= scale
            if residual is not None and residual.any():
                residual /= scale
        return True

    def leave(self, name: str, values: np.ndarray, finite: bool) -> None:
        """Bring a reduced gradient back, in place, and learn from it."""
        scale = self._scales.get(name)
        if scale is not None:
            with np.errstate(all="ignore"):
                values *= scale
        if self._from_optimizer(name) is not None:
            self._moments.pop(name, None)
        elif finite:
            self._learn(name, values)

    def restore(self, name: str, residual: np.ndarray | None) -> None:
        """Bring a residual back to the units of the gradient, in place."""
        scale = self._scales.pop(name, None)
        if scale is not None and residual is not None and residual.any():
            residual *= scale

    def digest(self, names: Iterable[str]) -> int:
        """Return a number that tells whether two ranks divide by the same."""
        kernels, crc = device.backend(), 0
        for name in names:
            if name in self._scales:
                crc = kernels.crc32c(self._scales[name].view(np.uint8), crc)
        return crc

    def _from_optimizer(self, name: str) -> Any:
        return None if self._provided is None else self._provided(name)

    def _scale(self, name: str, elements: int) -> np.ndarray | None:
        moment = self._from_optimizer(name)
        if moment is None:
            moment = self._moments.get(name)
        if moment is None:
            return None
        view = device.contiguous(moment)
        if view.size != elements:
            return None
        scale = np.empty(elements, np.float32)
        device.backend().load_f32(view, scale)
        np.sqrt(np.maximum(scale, 0, out=scale), out=scale)
        # Not np.mean, whose order of adding depends on the machine.
        least = np.float32(FLOOR * (device.backend().energy(scale) / max(elements, 1)) ** 0.5)
        if not 0.0 < least < np.float32(np.inf):
            return None
        return np.maximum(scale, least, out=scale)

    def _learn(self, name: str, values: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            square = np.square(values, dtype=np.float32)
        if not np.isfinite(square).all():
            return
        moment = self._moments.get(name)
        if moment is None or moment.size != values.size:
            self._moments[name] = square
        else:
            moment *= np.float32(DECAY)
            square *= np.float32(1.0 - DECAY)
            moment += square
