"""Periodised orthogonal wavelet transforms in NumPy: the reference of the compiled kernel.

S. Mallat: A theory for multiresolution signal decomposition, 1989; filters of I. Daubechies: Ten lectures on
wavelets, 1992, with the values and the phase that PyWavelets has in its mode "periodization".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device.wavelet import TAPS, extents

_LARGEST = np.float32(np.finfo(np.float32).max)


def forward(x: np.ndarray, name: str, levels: int, columns: int, finite: bool) -> np.ndarray:
    """Return the coefficients of `x`; see :func:`hvd_gradflow.device.wavelet.extents` for their order."""
    rows, width = extents(x.size, levels, columns)
    if not rows:
        count = width
        band, details = x[:count], []
        for _ in range(levels if count else 0):
            band, high = _analyze(band, name, finite)
            details.append(high)
        return np.concatenate([band, *reversed(details), x[count:]]).astype(np.float32)
    matrix = x.reshape(-1, columns)
    square = matrix[:rows, :width]
    fine: list[list[np.ndarray]] = []
    for _ in range(levels):
        low, high = _analyze(square, name, finite)
        (square, below), (beside, across) = (_analyze(part.T, name, finite) for part in (low, high))
        fine.append([below.T, beside.T, across.T])
        square = square.T
    parts = [square, *(part for level in reversed(fine) for part in level)]
    parts += [matrix[:rows, width:], matrix[rows:]]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def inverse(c: np.ndarray, name: str, levels: int, columns: int, finite: bool) -> np.ndarray:
    """Return what :func:`forward` was given, up to rounding."""
    rows, width = extents(c.size, levels, columns)
    if not rows:
        count = width
        at = count >> levels
        band = c[:at]
        for _ in range(levels if count else 0):
            band = _synthesize(band, c[at : 2 * at], name, finite)
            at *= 2
        return np.concatenate([band, c[count:]]).astype(np.float32)
    m, w = rows >> levels, width >> levels
    square, at = c[: m * w].reshape(m, w), m * w
    for _ in range(levels):
        below, beside, across = c[at : at + 3 * m * w].reshape(3, m, w)
        at += 3 * m * w
        low = _synthesize(square.T, below.T, name, finite).T
        high = _synthesize(beside.T, across.T, name, finite).T
        square = _synthesize(low, high, name, finite)
        m, w = 2 * m, 2 * w
    matrix = np.empty((c.size // columns, columns), np.float32)
    matrix[:rows, :width] = square
    right = rows * (columns - width)
    matrix[:rows, width:] = c[at : at + right].reshape(rows, -1)
    matrix[rows:] = c[at + right :].reshape(-1, columns)
    return matrix.ravel()


def _filters(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The low-pass filter of the decomposition, and the high-pass one, its quadrature mirror."""
    low = TAPS[name]
    high = low[::-1].copy()
    high[::2] *= -1
    return low, high


def _bounded(values: np.ndarray, finite: bool) -> np.ndarray:
    return np.clip(values, -_LARGEST, _LARGEST) if finite else values


def _analyze(v: np.ndarray, name: str, finite: bool) -> tuple[np.ndarray, np.ndarray]:
    """One level along the last axis: the lower and the upper half of the band."""
    low, high = _filters(name)
    size = v.shape[-1]
    a: Any = 0.0
    d: Any = 0.0
    with np.errstate(all="ignore"):
        for k in range(low.size):
            part = v[..., (2 * np.arange(size // 2) + low.size // 2 - k) % size]
            a = a + low[k] * part if k else low[k] * part
            d = d + high[k] * part if k else high[k] * part
    return _bounded(a, finite), _bounded(d, finite)


def _synthesize(a: np.ndarray, d: np.ndarray, name: str, finite: bool) -> np.ndarray:
    """What :func:`_analyze` took apart."""
    low, high = _filters(name)
    half = a.shape[-1]
    v = np.zeros((*a.shape[:-1], 2 * half), np.float32)
    with np.errstate(all="ignore"):
        for parity in (0, 1):
            total = None
            for k in range((low.size // 2 + parity) % 2, low.size, 2):
                i = (np.arange(half) + (parity - low.size // 2 + k) // 2) % half
                part = low[k] * a[..., i] + high[k] * d[..., i]
                total = part if total is None else total + part
            v[..., parity::2] = total
    return _bounded(v, finite)
