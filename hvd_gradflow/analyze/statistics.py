"""What can be said of one gradient: sparsity, concentration, bands, distribution, and the noise scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

LEVELS = 3
# From the lowest band, as they lie in the list of band_energies: what white noise has of its energy in each.
WHITE = (1 / 8, 1 / 8, 1 / 4, 1 / 2)
SMALL = 0.01  # of the root mean square: elements below hardly count
HELD = 0.9  # part of the energy that a few elements hold
QUANTILES = (0.5, 0.9, 0.99, 0.999)
EDGES = range(-14, 7)  # of the histogram, powers of two of the root mean square
PIECE = 2**15  # elements of one part of a sample
_ALIGNED = 256  # elements: the usual block of a codec, and a multiple of 2**LEVELS
_ADDED = 2**14  # elements that are widened at a time


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Return the inner product, by this thread alone: ``np.dot`` starts others, which the training needs."""
    return float(np.einsum("i,i", x, y))


def energy(x: np.ndarray) -> float:
    """Return the sum of squares of contiguous floats; not finite where one of them is not."""
    flat, total = x.reshape(-1), 0.0
    with np.errstate(all="ignore"):
        for first in range(0, flat.size, _ADDED):
            part = flat[first : first + _ADDED].astype(np.float64)
            total += dot(part, part)
    return total


def sample(x: np.ndarray, most: int) -> np.ndarray:
    """Return a copy of about `most` elements at most: contiguous pieces, spread over the array.

    Parameters
    ----------
    x : ndarray
        Contiguous, of any shape.
    most : int
        Arrays of as many elements are copied whole.

    Returns
    -------
    ndarray
        One dimension. Each piece begins at a multiple of 256 elements, so that what is nearby stays so.
    """
    flat = x.reshape(-1)
    if flat.size <= most:
        return flat.copy()
    pieces = max(1, most // PIECE)
    length = max(_ALIGNED, most // pieces // _ALIGNED * _ALIGNED)
    last = (flat.size - length) // _ALIGNED
    starts = [_ALIGNED * round(last * (2 * i + 1) / (2 * pieces)) for i in range(pieces)]
    return np.concatenate([flat[at : at + length] for at in starts])


def describe(x: np.ndarray) -> dict[str, Any]:
    """Return the statistics of one gradient.

    Parameters
    ----------
    x : ndarray of float32
        One dimension, finite, not all zero.

    Returns
    -------
    dict
        ``rms``: root mean square; ``max``: largest magnitude; ``zeros``: share of exact zeros; ``small``:
        share of elements below 1 % of the root mean square, zeros included; ``held``: share of the largest
        elements that hold 90 % of the energy; ``kurtosis``: fourth central moment over the squared variance,
        3 for a Gaussian; ``quantiles``: of magnitude over root mean square, at QUANTILES; ``histogram``:
        share of the elements whose magnitude over root mean square lies between two powers of two of EDGES,
        the first and the last without a limit, zeros in none; ``bands``: see :func:`band_energies`.
    """
    values = x.astype(np.float64)
    squares = values**2
    total = float(squares.sum())
    rms = math.sqrt(total / x.size)
    size = np.sort(np.abs(values))
    below = np.cumsum(size**2)  # of all the smaller ones and this one
    # The fewest that hold it: all but those which together have less than the rest.
    held = x.size - int(np.searchsorted(below, (1 - HELD) * total * (1 + 1e-12), side="right"))
    deviations = values - values.mean()
    variance = float((deviations**2).mean())
    at = np.minimum(np.ceil(np.array(QUANTILES) * x.size).astype(int), x.size) - 1
    return {
        "rms": rms,
        "max": float(size[-1]),
        "zeros": float(np.searchsorted(size, 0.0, side="right")) / x.size,
        "small": float(np.searchsorted(size, SMALL * rms)) / x.size,
        "held": held / x.size,
        "kurtosis": float((deviations**4).mean()) / variance**2 if variance > 0 else None,
        "quantiles": [float(q) / rms for q in size[at]],
        "histogram": _histogram(size / rms),
        "bands": band_energies(values),
    }


def _histogram(scaled: np.ndarray) -> list[float]:
    """Shares between powers of two; `scaled` ascends."""
    inner = [2.0**e for e in EDGES][1:-1]
    zeros = int(np.searchsorted(scaled, 0.0, side="right"))
    cuts = [zeros, *np.searchsorted(scaled, inner), scaled.size]
    return [float(b - a) / scaled.size for a, b in pairwise(cuts)]


def band_energies(x: np.ndarray) -> list[float] | None:
    """Return the shares of the energy in the bands of a Haar transform of three levels, along memory.

    Orthonormal: a pair (a, b) becomes (a + b) / sqrt(2) and (a - b) / sqrt(2), and the sums are taken in
    pairs again (S. Mallat: A theory for multiresolution signal decomposition, 1989). White noise has WHITE.

    Parameters
    ----------
    x : ndarray of float
        One dimension; what is beyond a multiple of eight elements is left out.

    Returns
    -------
    list of float, or None
        The lowest band (an eighth of the elements: means of eight neighbours), then the differences from
        coarse to fine: an eighth, a quarter, a half. None for fewer than eight elements, or all zeros.
    """
    low = x[: x.size - x.size % 2**LEVELS].astype(np.float64)
    bands: list[float] = []
    for _ in range(LEVELS):
        even, odd = low[::2], low[1::2]
        bands.insert(0, float(((even - odd) ** 2).sum()) / 2)
        low = (even + odd) / math.sqrt(2)
    bands.insert(0, float((low**2).sum()))
    total = sum(bands)
    return [band / total for band in bands] if total > 0 else None


def cosine(x: np.ndarray, y: np.ndarray) -> float | None:
    """Return the cosine of the angle between two arrays of one size; None where one is zero."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    norms = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / norms if norms > 0 else None


def noise_scale(local: Sequence[float], reduced: Sequence[float], ranks: int) -> float | None:
    """Return the simple noise scale, in batches of one rank.

    S. McCandlish, J. Kaplan, D. Amodei et al.: An empirical model of large-batch training, 2018, appendix
    A.1: with the squared norms of gradients at two batch sizes, here b = 1 (one rank's) and N (the average),
    unbiased estimates are |G|^2 = (N |G_N|^2 - |G_1|^2) / (N - 1) and, for the trace of the covariance,
    S = (|G_1|^2 - |G_N|^2) / (1 - 1 / N). Each is averaged over the steps; then B = S / |G|^2.

    Parameters
    ----------
    local, reduced : sequence of float
        For each step the mean of the ranks' squared norms, and that of their average's.
    ranks : int

    Returns
    -------
    float or None
        Infinity where the noise leaves nothing of the gradient to be seen; None with one rank, or no steps.
    """
    if ranks < 2 or not local:
        return None
    one, all_ranks = math.fsum(local), math.fsum(reduced)
    gradient = (ranks * all_ranks - one) / (ranks - 1)
    noise = (one - all_ranks) / (1 - 1 / ranks)
    if noise <= 0:
        return 0.0 if gradient > 0 else None
    return noise / gradient if gradient > 0 else math.inf
