"""Reference of log4: sign and three bits of exponent (natural compression, Horváth et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common

LOWEST_EXPONENT = -120  # of a block; its lowest level is then 2^-126, a normal float
NONFINITE = 255


def _rounded_exponent(magnitude: np.ndarray) -> np.ndarray:
    """Exponent of the nearest power of two; 1.5 * 2^k goes up. Zero gives a very low one."""
    fraction, exponent = np.frexp(magnitude)  # magnitude = fraction * 2^exponent, fraction in [1/2, 1)
    return np.where(magnitude > 0, exponent - 1 + (fraction >= 0.75), -1000)


def _nearest(magnitude: np.ndarray, top: np.ndarray) -> np.ndarray:
    level = np.clip(_rounded_exponent(magnitude) - top + 7, 1, 7)
    return np.where(magnitude >= np.ldexp(1.0, top - 7), level, 0)


def _stochastic(magnitude: np.ndarray, top: np.ndarray, h: np.ndarray) -> np.ndarray:
    lowest = np.ldexp(np.float32(1), top - 6).astype(np.float32)
    below = magnitude < lowest
    start = magnitude + np.where(below, lowest, np.float32(0))
    fraction, exponent = np.frexp(start.astype(np.float64))
    up = (2.0 * fraction - 1.0) + (h >> np.uint32(9)) * 2.0**-23 >= 1.0
    level = exponent - 1 + up - top + 7 - below
    return np.minimum(level, 7)


def encode(spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int) -> tuple:
    """Return the body and whether a block is not finite."""
    v = common.to_blocks(common.with_residual(x, residual), spec["block"])
    finite = np.isfinite(v).all(axis=1)
    magnitude = np.abs(np.where(finite[:, None], v, np.float32(0)))
    largest = magnitude.max(axis=1, initial=0).astype(np.float64)
    if spec["rounding"]:  # upwards, so that nothing is clamped
        fraction, exponent = np.frexp(largest)
        top = exponent - 1 + (fraction > 0.5)
    else:
        top = _rounded_exponent(largest)
    top = np.clip(top, LOWEST_EXPONENT, 127)[:, None]
    if spec["rounding"]:
        level = _stochastic(magnitude, top, common.dither(key, first, v.size).reshape(v.shape))
    else:
        level = _nearest(magnitude.astype(np.float64), top)
    coded = (finite & (largest > 0))[:, None]
    level = np.where(coded, level, 0)
    code = np.where((level > 0) & np.signbit(v), level + 8, level)
    with np.errstate(all="ignore"):
        lost = (v - _values(code, top)).astype(np.float32)
    lost[largest == 0] = 0
    common.keep_residual(residual, lost, finite)
    exponent_byte = np.where(coded[:, 0], top[:, 0] + 127, 0)
    exponent_byte[~finite] = NONFINITE
    return exponent_byte.astype(np.uint8).tobytes() + common.pack_codes(code, 4, x.size), not finite.all()


def _values(code: np.ndarray, top: np.ndarray) -> np.ndarray:
    level = code & 7
    magnitude = np.where(level > 0, np.ldexp(1.0, top - 7 + level), 0.0)
    return np.where(code & 8, -magnitude, magnitude).astype(np.float32)


def content(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, bool]:
    """Return whether the body is possible, and whether it has blocks that are not finite."""
    size = -(-n // spec["block"])
    exponent, packed = body[:size], body[size:]
    valid = bool(((exponent == 0) | (exponent >= LOWEST_EXPONENT + 127)).all())
    valid &= not (common.unpack_codes(packed, 4, packed.size * 2) == 8).any()
    return valid and common.padding_is_zero(packed, 4, n), bool((exponent == NONFINITE).any())


def decode(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    size = -(-n // spec["block"])
    exponent = body[:size].astype(np.int64)
    codes = common.to_blocks(common.unpack_codes(body[size:], 4, n), spec["block"])
    values = _values(codes, np.where((exponent == 0) | (exponent == NONFINITE), 0, exponent - 127)[:, None])
    values[exponent == 0] = 0
    values[exponent == NONFINITE] = common.NAN
    return values.reshape(-1)[:n]
