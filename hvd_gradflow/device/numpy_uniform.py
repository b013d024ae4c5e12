"""Reference of the uniform quantizer (int8, int4, int2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common


def _params(scale: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return pre, inv, step and post of each block, as columns; `scale` is finite and positive."""
    levels = np.float32(2 ** (bits - 1) - 1)
    small, large = scale < np.float32(2.0**-60), scale > np.float32(2.0**60)
    pre = np.where(small, np.float32(2.0**64), np.where(large, np.float32(2.0**-64), np.float32(1)))
    pre = pre.astype(np.float32)[:, None]
    scaled = scale[:, None] * pre
    step = scaled / levels
    # Rounded up, the step would decode the largest code of the largest scales to infinity.
    step = np.where(large[:, None] & (levels * step > scaled), np.nextafter(step, np.float32(0)), step)
    return pre, levels / scaled, step, np.float32(1) / pre


def encode(spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int) -> tuple:
    """Return the body and whether a block is not finite."""
    bits, levels = spec["bits"], 2 ** (spec["bits"] - 1) - 1
    v = common.to_blocks(common.with_residual(x, residual), spec["block"])
    finite = np.isfinite(v).all(axis=1)
    scale = np.where(finite, np.abs(v).max(axis=1, initial=0), common.NAN).astype(np.float32)
    coded = finite & (scale > 0)
    pre, inv, step, post = _params(np.where(coded, scale, np.float32(1)), bits)
    with np.errstate(all="ignore"):
        scaled = v * pre * inv
        if spec["rounding"]:
            h = common.dither(key, first, v.size).view(np.int32).reshape(v.shape)
            scaled = scaled + ((h >> 15) | 1).astype(np.float32) * np.float32(2.0**-17)
        codes = np.clip(np.rint(np.where(coded[:, None], scaled, np.float32(0))), -levels, levels)
        codes = codes.astype(np.int32)
        lost = v - codes.astype(np.float32) * step * post
    lost[finite & ~coded] = 0
    common.keep_residual(residual, lost, finite)
    bits_of_scale = scale.view(np.uint32)
    bits_of_scale[~finite] = common.CANONICAL_NAN
    return bits_of_scale.tobytes() + common.pack_codes(codes, bits, x.size), not finite.all()


def split(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales, as uint32, and the packed codes."""
    size = 4 * -(-n // spec["block"])
    return body[:size].copy().view(np.uint32), body[size:]


def content(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, bool]:
    """Return whether the body is possible, and whether it has blocks that are not finite."""
    scale, packed = split(spec, body, n)
    nan = scale == common.CANONICAL_NAN
    lowest = 2 ** (spec["bits"] - 1)
    codes = common.unpack_codes(packed, spec["bits"], packed.size * 8 // spec["bits"])
    valid = bool((nan | (scale < 0x7F800000)).all()) and not (codes == lowest).any()
    return valid and common.padding_is_zero(packed, spec["bits"], n), bool(nan.any())


def decode(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    bits = spec["bits"]
    raw, packed = split(spec, body, n)
    scale = raw.view(np.float32)
    codes = common.unpack_codes(packed, bits, n)
    signed = np.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes).astype(np.float32)
    coded = np.isfinite(scale) & (scale > 0)
    _, _, step, post = _params(np.where(coded, scale, np.float32(1)), bits)
    blocks = common.to_blocks(signed, spec["block"])
    with np.errstate(all="ignore"):
        values = blocks * step * post
    values[scale == 0] = 0
    values[np.isnan(scale)] = common.NAN
    return values.reshape(-1)[:n]
