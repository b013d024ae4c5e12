"""Reference of sign1: signs, and the mean magnitude of each block."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common

_LANES = 32  # GF_SIGN1_LANES in cython_ext/elements.h
_MASKED = np.uint32(0x80000000)  # in a block's scale: which elements are zero is told


def mean_magnitudes(v: np.ndarray) -> np.ndarray:
    """Return the mean magnitude of each row's elements that are not zero, 0 where all are; all are finite.

    In double and in a fixed order: 32 lanes, lane j adding elements j, j + 32, ...; then the upper half of
    the lanes is added to the lower one until one is left.
    """
    magnitudes = np.abs(v).astype(np.float64).reshape(v.shape[0], v.shape[1] // _LANES, _LANES)
    lanes = np.add.accumulate(magnitudes, axis=1)[:, -1]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    count = np.count_nonzero(v, axis=1)
    return (lanes[:, 0] / np.maximum(count, 1)).astype(np.float32)


def _sizes(spec: dict[str, Any], n: int) -> np.ndarray:
    """Elements of each block."""
    block = spec["block"]
    return np.minimum(block, n - np.arange(-(-n // block)) * block)


def encode(spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int) -> tuple:
    """Return the body and whether a block is not finite."""
    v = common.to_blocks(common.with_residual(x, residual), spec["block"])
    finite = np.isfinite(v).all(axis=1)
    known = np.where(finite[:, None], v, np.float32(0))
    scale = mean_magnitudes(known)
    nonzero = known != 0
    lost = known - np.where(nonzero, np.copysign(scale[:, None], known), np.float32(0))
    lost[scale == 0] = 0
    common.keep_residual(residual, lost, finite)

    table, parts = scale.view(np.uint32), []
    for i, size in enumerate(_sizes(spec, x.size).tolist()):
        coded = nonzero[i, :size]
        if not coded.any():
            continue
        if not coded.all():
            table[i] |= _MASKED
            parts.append(coded)
        parts.append(coded & (known[i, :size] < 0))
    table[~finite] = common.CANONICAL_NAN
    bits = b"".join(np.packbits(part, bitorder="little").tobytes() for part in parts)
    return table.tobytes() + bits, not finite.all()


def _parts(table: np.ndarray) -> np.ndarray:
    """How many bits each block has for an element: 0, 1, or 2 with a mask."""
    coded = (table & ~_MASKED != 0) & (table != common.CANONICAL_NAN)
    return np.where(coded, 1 + (table >> np.uint32(31)), 0)


def _blocks(spec: dict[str, Any], body: np.ndarray, n: int) -> Any:
    """Yield number, mask and signs (bool, with the filling of the last byte) of each block that has bits."""
    sizes = _sizes(spec, n)
    table, at = body[: 4 * sizes.size].copy().view(np.uint32), 4 * sizes.size
    for i, parts in enumerate(_parts(table).tolist()):
        if parts:
            width = (int(sizes[i]) + 7) // 8
            rows = [
                np.unpackbits(body[at + k * width : at + (k + 1) * width], bitorder="little").astype(bool)
                for k in range(parts)
            ]
            at += parts * width
            full = np.arange(8 * width) < sizes[i]
            yield i, rows[0] if parts == 2 else full, rows[-1]


def content(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, bool]:
    """Return whether the body is possible, and whether it has blocks that are not finite."""
    sizes = _sizes(spec, n)
    table = body[: 4 * sizes.size].copy().view(np.uint32)
    nan = table == common.CANONICAL_NAN
    valid = bool((nan | ((table & ~_MASKED < 0x7F800000) & (table != _MASKED))).all())
    valid = valid and body.size == 4 * sizes.size + int((_parts(table) * ((sizes + 7) // 8)).sum())
    if valid:
        for i, mask, signs in _blocks(spec, body, n):
            size = sizes[i]
            mixed = mask[:size].any() and not mask[:size].all()
            valid &= not (signs & ~mask).any() and not mask[size:].any()
            valid &= bool(mixed) == bool(table[i] & _MASKED)
    return bool(valid), bool(nan.any())


def decode(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    block = spec["block"]
    table = body[: 4 * -(-n // block)].copy().view(np.uint32)
    scale = (table & ~_MASKED).view(np.float32)
    values = np.zeros((table.size, block), np.float32)
    values[table == common.CANONICAL_NAN] = common.NAN
    for i, mask, signs in _blocks(spec, body, n):
        row = np.where(signs, -scale[i], scale[i])
        values[i, : mask.size] = np.where(mask, row, np.float32(0))[:block]
    return values.reshape(-1)[:n]
