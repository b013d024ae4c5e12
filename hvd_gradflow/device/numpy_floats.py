"""Reference of the codecs none, fp16 (with a block exponent) and bf16."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common

LOWEST_EXPONENT = -112  # of a block's maximum under fp16, so that its scale is a normal float
NONFINITE = 255


def bf16_bits(v: np.ndarray) -> np.ndarray:
    """Return the bfloat16 nearest to each float32 (ties to even), as uint16; NaN is the canonical one."""
    u = v.view(np.uint32).astype(np.uint64)
    rounded = ((u + np.uint64(0x7FFF) + ((u >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(
        np.uint16
    )
    return np.where(np.isnan(v), np.uint16(0x7FC0), rounded)


def from_bf16_bits(b: np.ndarray) -> np.ndarray:
    """Return the float32 of bfloat16 bits."""
    return (b.astype(np.uint32) << np.uint32(16)).view(np.float32)


def half(v: np.ndarray) -> np.ndarray:
    """Return the float16 nearest to each float32 (ties to even); NaN is the canonical one."""
    with np.errstate(all="ignore"):
        h = v.astype(np.float16)
    h.view(np.uint16)[np.isnan(v)] = 0x7E00
    return h


def encode_none(
    spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int
) -> tuple:
    """Return the body and whether an element is not finite."""
    v = common.with_residual(x, residual)
    finite = np.isfinite(v)
    common.keep_residual(residual, np.zeros((v.size, 1), np.float32), finite)
    bits = v.view(np.uint32)
    bits[np.isnan(v)] = common.CANONICAL_NAN
    return bits.tobytes(), not finite.all()


def decode_none(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    return body.copy().view(np.float32)


def encode_bf16(
    spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int
) -> tuple:
    """Return the body and whether an element is not finite."""
    v = common.with_residual(x, residual)
    finite = np.isfinite(v)
    bits = bf16_bits(v)
    bits = np.where(finite & (bits & 0x7FFF == 0x7F80), bits - np.uint16(1), bits)
    with np.errstate(all="ignore"):
        lost = v - from_bf16_bits(bits)
    common.keep_residual(residual, lost[:, None], finite)
    return bits.astype(np.uint16).tobytes(), not finite.all()


def decode_bf16(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    return from_bf16_bits(body.copy().view(np.uint16))


def content_plain(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, None]:
    """Every body of the right length is possible; nothing is said about finiteness."""
    return True, None


def encode_fp16(
    spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int
) -> tuple:
    """Return the body and whether a block is not finite."""
    v = common.to_blocks(common.with_residual(x, residual), spec["block"])
    finite = np.isfinite(v).all(axis=1)
    largest = np.abs(np.where(finite[:, None], v, np.float32(0))).max(axis=1, initial=0).astype(np.float64)
    coded = largest > 0
    top = np.maximum(np.frexp(np.where(coded, largest, 1.0))[1] - 1, LOWEST_EXPONENT)
    with np.errstate(all="ignore"):
        h = half(v * np.ldexp(np.float32(1), 14 - top)[:, None].astype(np.float32))
        limit = np.where(top == 127, np.float16(32752), np.float16(np.inf))[:, None]
        h = np.clip(h, -limit, limit)
        h[~coded] = 0
        lost = v - h.astype(np.float32) * np.ldexp(np.float32(1), top - 14)[:, None].astype(np.float32)
    lost[finite & ~coded] = 0
    common.keep_residual(residual, lost, finite)
    exponent = np.where(coded, top + 127, 0)
    exponent[~finite] = NONFINITE
    return exponent.astype(np.uint8).tobytes() + h.reshape(-1)[: x.size].tobytes(), not finite.all()


def content_fp16(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, bool]:
    """Return whether the body is possible, and whether it has blocks that are not finite."""
    exponent = body[: -(-n // spec["block"])]
    valid = bool(((exponent == 0) | (exponent >= LOWEST_EXPONENT + 127)).all())
    return valid, bool((exponent == NONFINITE).any())


def decode_fp16(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    blocks = -(-n // spec["block"])
    exponent = body[:blocks].astype(np.int64)
    h = body[blocks:].copy().view(np.float16)
    top = np.where((exponent == 0) | (exponent == NONFINITE), 0, exponent - 127)
    with np.errstate(all="ignore"):
        values = common.to_blocks(h.astype(np.float32), spec["block"])
        values *= np.ldexp(np.float32(1), top - 14).astype(np.float32)[:, None]
    values[exponent == 0] = 0
    values[exponent == NONFINITE] = common.NAN
    return values.reshape(-1)[:n]
