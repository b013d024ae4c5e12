"""Reference of topk, and of the code of ascending indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common
from hvd_gradflow.device import wire_topk as layout


def encode_indices(indices: np.ndarray, n: int) -> bytes:
    """Return the code of ascending indices below `n`."""
    b = layout.rice_parameter(n, indices.size)
    gaps = indices.astype(np.int64)
    gaps[1:] -= indices[:-1] + 1
    whole = gaps >> b
    sizes = whole + 1 + b
    ends = np.cumsum(sizes)
    bits = np.zeros(int(ends[-1]) if ends.size else 0, bool)
    ones = ends - sizes + whole
    bits[ones] = True
    for j in range(b):
        bits[ones + 1 + j] = gaps >> j & 1
    return bytes([b]) + np.packbits(bits, bitorder="little").tobytes()


def decode_indices(code: np.ndarray, n: int, k: int) -> tuple[np.ndarray, int] | None:
    """Return the `k` indices at the front of `code`, and its bytes; None if no encoder makes that."""
    b = layout.rice_parameter(n, k)
    if code.size == 0 or code[0] != b:
        return None
    bits = np.unpackbits(code[1:], bitorder="little")
    ones = np.flatnonzero(bits)
    weights = 1 << np.arange(b, dtype=np.int64)
    indices, at, index = np.zeros(k, np.int64), 0, -1
    for i in range(k):
        place = int(np.searchsorted(ones, at))
        if place == ones.size or int(ones[place]) + b >= bits.size:
            return None
        one = int(ones[place])
        index += 1 + ((one - at) << b) + int(bits[one + 1 : one + 1 + b].astype(np.int64) @ weights)
        if index >= n:
            return None
        indices[i], at = index, one + 1 + b
    used = (at + 7) // 8
    return None if bits[at : 8 * used].any() else (indices, 1 + used)


def encode(spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, key: int, first: int) -> tuple:
    """Return the body and whether an element is not finite."""
    v = common.with_residual(x, residual)
    magnitude = np.abs(v)
    finite = np.isfinite(v)
    candidates = np.flatnonzero(finite & (v != 0))
    order = np.argsort(-magnitude[candidates], kind="stable")
    largest = candidates[order[: layout.kept(layout.ratio_of(spec["params"]), v.size)]]
    sent = ~finite
    sent[largest] = True
    indices = np.flatnonzero(sent)
    values = v[indices]
    if residual is not None:
        residual[finite] = np.where(sent, np.float32(0), v)[finite]
    values[np.isnan(values)] = common.NAN
    body = np.uint64(indices.size).tobytes() + values.tobytes() + encode_indices(indices, v.size)
    return body.ljust(v.size // layout.ELEMENTS_PER_BYTE, b"\0"), not finite.all()


def _parts(body: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Indices, values and the bytes of both; None if a body is impossible."""
    if body.size < layout.FRONT_BYTES:
        return None
    k = int(body[: layout.FRONT_BYTES].copy().view(np.uint64)[0])
    code = layout.FRONT_BYTES + 4 * k
    if k > n or code > body.size:
        return None
    read = decode_indices(body[code:], n, k)
    if read is None:
        return None
    return read[0], body[layout.FRONT_BYTES : code].copy().view(np.float32), code + read[1]


def content(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, bool]:
    """Return whether the body is possible, and whether it has elements that are not finite."""
    parts = _parts(body, n)
    if parts is None:
        return False, False
    _, values, used = parts
    nan = np.isnan(values)
    valid = (values != 0).all() and (values[nan].view(np.uint32) == common.CANONICAL_NAN).all()
    valid = valid and body.size == max(used, n // layout.ELEMENTS_PER_BYTE) and not body[used:].any()
    return bool(valid), not np.isfinite(values).all()


def decode(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    out = np.zeros(n, np.float32)
    add(out, body)
    return out


def add(acc: np.ndarray, body: np.ndarray) -> None:
    """Add what a body that has been checked says; nothing else changes."""
    parts = _parts(body, acc.size)
    assert parts is not None  # or its status would tell
    with np.errstate(all="ignore"):
        acc[parts[0]] += parts[1]
