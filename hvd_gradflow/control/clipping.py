"""Clipping by the norm of all reduced gradients together (Pascanu et al. 2013, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from hvd_gradflow.device import backend
from hvd_gradflow.errors import ConfigError

EPSILON = 1e-6  # that of torch.nn.utils.clip_grad_norm_: no division by a norm of zero


def checked(limit: float | None, name: str) -> float | None:
    """Return the limit of an argument of this name.

    Raises
    ------
    ConfigError
        If it is not a positive number.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0.0 < limit < math.inf:
        raise ConfigError(f"{name}={limit!r}, expected a positive number, or None for no clipping")
    return float(limit)


def energy(x: np.ndarray) -> float:
    """Return the sum of squares of a contiguous array, NaN where not all of it is finite.

    Added in an order that depends on the length only, so that equal gradients give equal numbers, whatever
    number of threads or instruction set a rank has.

    Parameters
    ----------
    x : ndarray of float32 or float64
    """
    flat = x.reshape(-1)
    if not flat.size:
        return 0.0
    if not (math.isfinite(flat.min()) and math.isfinite(flat.max())):  # both keep NaN
        return math.nan
    return backend().energy(flat) if flat.dtype == np.float32 else float(np.add.reduce(np.square(flat)))


def norm(energies: Iterable[float]) -> float:
    """Return the norm of all gradients together, from the sum of squares of each; inf beyond float64."""
    try:
        return math.sqrt(math.fsum(energies))
    except OverflowError:
        return math.inf


def factor(norm: float, limit: float) -> float:
    """Return by what gradients are multiplied; 1 where the norm is not finite: that is for others to see."""
    return min(1.0, limit / (norm + EPSILON)) if math.isfinite(norm) else 1.0
