"""Low-rank factors of a matrix: power iteration, with the same bits on every machine where that counts.

A factor of rank r is float32 of shape (r, n): its rows are the columns of the P or Q of the literature. What
only one rank computes (:func:`project`) is left to BLAS. What all ranks compute for themselves from equal
factors (:func:`orthonormalized`, :func:`product`, :func:`renewed`) uses nothing but element by element +, -,
x, / and square roots, each rounded once, in an order that depends on shapes alone: neither BLAS, nor
``np.sum``, whose order of adding depends on the processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

FLOAT_MAX = float(np.finfo(np.float32).max)
_BLOCK = 1 << 15  # elements of a product that are worked on at a time: they stay in the cache
_NOISE = 1e-6  # what is left of a column, over what it was: below this it is rounding error of float32


def matrix_shape(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns of a tensor as a matrix, or None for fewer than two dimensions.

    The first dimension by the rest, as in the paper, or all others by the last, if that is nearer to a
    square: so a convolution's kernel has its outputs on one side in torch's order and in TensorFlow's.
    """
    if len(shape) < 2:
        return None
    first = shape[0], math.prod(shape[1:])
    last = math.prod(shape[:-1]), shape[-1]
    return last if sum(last) < sum(first) else first


def drawn(rank: int, n: int, *seeds: int) -> np.ndarray:
    """Return a random factor: (rank, n) float32, uniform between -1 and 1, and never all zero in a row.

    Parameters
    ----------
    *seeds : int
        Not negative; equal ones give equal bits with every version of NumPy.
    """
    raw = np.random.PCG64(seeds).random_raw(rank * n)
    odd = (raw >> np.uint64(40)).astype(np.int64) * 2 + 1 - 2**24
    return (odd.astype(np.float64) * 2.0**-24).astype(np.float32).reshape(rank, n)


def project(factor: np.ndarray, matrix: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return ``factor @ matrix``, (r, n) float32, by BLAS: of Q and the transposed matrix, or of P and it."""
    with np.errstate(all="ignore"):
        return np.matmul(factor, matrix, out=out)


def orthonormalized(factor: np.ndarray) -> np.ndarray:
    """Return a factor with the same span whose rows are orthonormal, (r, n) float32.

    Modified Gram-Schmidt (Golub and Van Loan: Matrix Computations, section 5.2.8) in float64, twice, since
    what is left of nearly dependent rows is not orthogonal after one pass. A row of which nothing but
    rounding error is left becomes zero.

    Parameters
    ----------
    factor : ndarray of float32, shape (r, n)
        Finite, of any scale.
    """
    rows = factor.astype(np.float64)
    least = _NOISE * np.sqrt(ordered_sum(rows * rows))
    for _ in range(2):
        for j in range(len(rows)):
            row = rows[j]
            norm = math.sqrt(float(ordered_sum((row * row)[None])[0]))
            if norm <= least[j]:
                row[:] = 0.0
                continue
            row /= norm
            rest = rows[j + 1 :]
            rest -= ordered_sum(rest * row)[:, None] * row
        least[:] = 0.0
    return rows.astype(np.float32)


def ordered_sum(values: np.ndarray) -> np.ndarray:
    """Return the sum of each row of (r, n) values, by halves: always in the same order."""
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        added = values[:, :half] + values[:, half : 2 * half]
        if values.shape[1] % 2:
            added[:, 0] += values[:, -1]
        values = added
    return values[:, 0] if values.shape[1] else np.zeros(len(values), values.dtype)


def product(p: np.ndarray, q: np.ndarray, exponent: int = 0) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield the matrix of two factors, times two to a power, in pieces: first row, row after it, values.

    Finite factors give finite values: what is beyond float32 is its largest number.

    Parameters
    ----------
    p, q : ndarray of float32, shape (r, rows) and (r, columns)
    exponent : int

    Yields
    ------
    int, int, ndarray of float32 of shape (rows of the piece, columns)
        Valid until the next one is asked for.
    """
    rows, columns = p.shape[1], q.shape[1]
    if not rows or not columns:
        return
    with np.errstate(all="ignore"):
        wide = np.ldexp(q.astype(np.float64), exponent)
    bound = float(np.abs(p).max(initial=0.0)) * float(np.abs(wide).max(initial=0.0)) * len(p)
    # Above, a sum may overflow; below, products of float32 would be denormals.
    kind = np.float32 if 2.0**-100 < bound < 2.0**126 else np.float64
    left, right = p.astype(kind), wide.astype(kind)
    most = max(1, _BLOCK // columns)
    total, term = (np.empty((min(most, rows), columns), kind) for _ in range(2))
    narrow = total if kind is np.float32 else np.empty_like(total, np.float32)
    for begin in range(0, rows, most):
        end = min(rows, begin + most)
        block, more, result = (a[: end - begin] for a in (total, term, narrow))
        with np.errstate(all="ignore"):
            np.multiply(left[0, begin:end, None], right[0], out=block)
            for j in range(1, len(p)):
                np.multiply(left[j, begin:end, None], right[j], out=more)
                block += more
            if result is not block:
                result[:] = np.clip(block, -FLOAT_MAX, FLOAT_MAX)
        yield begin, end, result


def renewed(q: np.ndarray, *seeds: int) -> np.ndarray:
    """Return what to begin the next power iteration from, given the last factor, (r, n) float32.

    Its rows are made orthonormal. That keeps the span of the first of them, however many, so in exact
    arithmetic nothing changes; but rows that lean towards the strongest direction tell others badly. Then
    they are divided by a power of two, so that no projection of finite values on one of them overflows: its
    magnitudes add up to at most one half. A row that is zero would stay so: it is drawn anew.
    """
    rows = orthonormalized(q)
    alive = rows.any(axis=1, keepdims=True)
    if not alive.all():
        rows = orthonormalized(np.where(alive, rows, drawn(*q.shape, *seeds)))
    return rows * np.float32(2.0 ** -(half_exponent(q.shape[1]) + 1))


def half_exponent(n: int) -> int:
    """Return a k with 2^k >= sqrt(n): projected on a unit vector, n values give at most 2^k the largest."""
    return (max(n - 1, 0).bit_length() + 1) // 2


def add_clipped(values: np.ndarray, factor: float, more: np.ndarray | None) -> None:
    """Do ``values = values * factor + more`` in place (flat float32); what is finite stays so."""
    scale = np.float32(factor)
    for begin in range(0, values.size, _BLOCK):
        part = values[begin : begin + _BLOCK]
        with np.errstate(all="ignore"):
            part *= scale
            if more is not None:
                part += more[begin : begin + _BLOCK]
        np.clip(part, -FLOAT_MAX, FLOAT_MAX, out=part)
