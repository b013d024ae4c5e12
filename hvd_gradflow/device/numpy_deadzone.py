"""Reference of deadzone: integers times one step for a tensor, few bits for zeros.

The quantizer has a zone around zero that is wider than a step (G. J. Sullivan: Efficient scalar quantization
of exponential and Laplacian random variables, 1996).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common
from hvd_gradflow.device.numpy_bits import Impossible, Reader, Writer, demand
from hvd_gradflow.device.numpy_deadzone_bits import MAX_SHIFT, NONFINITE, get_block, put_block
from hvd_gradflow.device.wire_deadzone import (
    BLOCK,
    CODE_BITS,
    GROUP,
    SUM_BITS,
    Tables,
    own_step,
    read_tables,
    unpack_params,
    write_tables,
)

_LARGEST = np.finfo(np.float32).max


# ---- Quantizing -----------------------------------------------------------------------------------------


def _exponent(a: Any) -> np.ndarray:
    """E with 2^E <= a < 2^(E+1), for positive floats of any size."""
    return np.frexp(np.asarray(a, np.float64))[1] - 1


def _block_steps(step: np.float32, shift: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (step * np.ldexp(np.float32(1), shift)).astype(np.float32)


def _values(codes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """What signed codes stand for; +0 where a code is 0."""
    with np.errstate(all="ignore"):
        return np.clip(codes.astype(np.float32) * steps, -_LARGEST, _LARGEST)


def quantize(
    v: np.ndarray, step: np.float32, offset: np.float32, code_bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the signed codes of finite blocks, as int64, and the shift of each block."""
    magnitude = np.abs(v)
    largest = magnitude.max(axis=1, initial=0)
    shift = np.zeros(len(v), np.int64)
    if step == 0:
        return np.zeros(v.shape, np.int64), shift
    some = largest > 0
    shift[some] = np.clip(_exponent(largest[some]) - _exponent(step) + 1 - code_bits, 0, MAX_SHIFT)
    steps = _block_steps(step, shift)[:, None]
    pre = np.ones_like(steps)
    pre[steps < np.float32(2.0**-60)] = 2.0**64
    pre[steps > np.float32(2.0**60)] = 2.0**-64
    inv = np.float32(1) / (steps * pre)
    with np.errstate(all="ignore"):
        t = magnitude * pre * inv + offset
    q = np.where(t < 2**code_bits, np.minimum(t, 2**code_bits), 2**code_bits).astype(np.int64)
    return np.where(np.signbit(v), -q, q), shift


# ---- Bodies ---------------------------------------------------------------------------------------------


def _encode_segment(v: np.ndarray, step: np.float32, offset: np.float32, code_bits: int) -> tuple:
    """Return the bytes of each group, the values, as blocks, and whether each block is finite."""
    finite = np.isfinite(v).all(axis=1)
    codes, shift = quantize(np.where(finite[:, None], v, np.float32(0)), step, offset, code_bits)
    groups = []
    for first in range(0, len(v), GROUP):
        w, filled = Writer(), 0
        for block in range(first, min(first + GROUP, len(v))):
            if not finite[block]:
                w.put(NONFINITE, 4)
            elif codes[block].any():
                put_block(w, codes[block].tolist(), int(shift[block]))
            else:
                continue
            filled |= 1 << (block - first)
        groups.append(filled.to_bytes(4, "little") + w.packed() if filled else b"")
    return groups, _values(codes, _block_steps(step, shift)[:, None]), finite


def _encode(
    offset: np.float32,
    code_bits: int,
    ends: np.ndarray,
    steps: np.ndarray,
    x: np.ndarray,
    residual: np.ndarray | None,
    unit: np.float32 | None = None,
) -> tuple[bytes, bool]:
    """Return the body and whether a block is not finite; `unit` replaces steps that are not 0."""
    groups: list[bytes] = []
    nonfinite, begin = False, 0
    for end, step in zip(ends.tolist(), steps):
        part = slice(begin, end)
        own = None if residual is None else residual[part]
        v = common.to_blocks(common.with_residual(x[part], own), BLOCK)
        made, values, finite = _encode_segment(
            v, step if unit is None or step == 0 else unit, offset, code_bits
        )
        with np.errstate(all="ignore"):
            common.keep_residual(own, v - values, finite)
        groups += made
        nonfinite |= not finite.all()
        begin = end
    return write_tables(ends, steps, [len(g) for g in groups]) + b"".join(groups), nonfinite


def encode_stepped(
    spec: dict[str, Any], ends: np.ndarray, steps: np.ndarray, x: np.ndarray, residual: np.ndarray | None
) -> tuple[bytes, bool]:
    """Return the body and whether a block is not finite."""
    return _encode(unpack_params(spec["params"])[3], CODE_BITS, ends, steps, x, residual)


def encode_codes(ends: np.ndarray, steps: np.ndarray, codes: np.ndarray) -> tuple[bytes, bool]:
    """Return the body of integers that decode to themselves times the steps."""
    return _encode(np.float32(0.5), SUM_BITS, ends, steps, codes, None, np.float32(1))


def encode(
    spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, energy: float
) -> tuple[bytes, bool]:
    """Return the body with a step of its own, from the sum of squares of `x`."""
    control, value, _, _ = unpack_params(spec["params"])
    steps = np.array([own_step(value if control == 0 else 1.0, energy, x.size)], np.float32)
    ends = np.array([x.size], np.uint64)
    some = min(x.size, 1)
    return encode_stepped(spec, ends[:some], steps[:some], x, residual)


@dataclass(frozen=True)
class _Block:
    begin: int
    step: np.float32  # of its segment
    content: tuple[list[int], int] | None


def _blocks(body: np.ndarray, tables: Tables) -> Iterator[_Block]:
    """The blocks that are not empty; raises Impossible where the bits are."""
    at, group, begin = tables.data, 0, 0
    for end, step in zip(tables.ends.tolist(), tables.steps):
        for first in range(begin, end, GROUP * BLOCK):
            size = int(tables.sizes[group])
            data, at, group = body[at : at + size].tobytes(), at + size, group + 1
            if not size:
                continue
            filled, r = int.from_bytes(data[:4], "little"), Reader(data[4:])
            demand(size > 4 and filled != 0 and filled >> min(GROUP, -(-(end - first) // BLOCK)) == 0)
            for block in range(GROUP):
                if filled >> block & 1:
                    yield _Block(first + block * BLOCK, step, get_block(r))
            demand(r.left < 8 and r.number == 0)
        begin = end


def content(spec: dict[str, Any], body: np.ndarray, n: int) -> tuple[bool, bool]:
    """Return whether the body is possible, and whether it has blocks that are not finite."""
    tables, nonfinite = read_tables(body, n), False
    if tables is None:
        return False, False
    try:
        for block in _blocks(body, tables):
            if block.content is None:
                nonfinite = True
                continue
            signed, shift = block.content
            demand(bool(block.step > 0) and not any(signed[n - block.begin :]))
            demand(bool(np.isfinite(_block_steps(block.step, np.array(shift)))))
    except Impossible:
        return False, nonfinite
    return True, nonfinite


def decode(spec: dict[str, Any], body: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a body that has been checked."""
    return _decode(body, n, None)


def codes(body: np.ndarray, n: int) -> np.ndarray:
    """Return its integers."""
    return _decode(body, n, np.float32(1))


def _decode(body: np.ndarray, n: int, unit: np.float32 | None) -> np.ndarray:
    tables, values = read_tables(body, n), np.zeros(n, np.float32)
    assert tables is not None
    for block in _blocks(body, tables):
        part = values[block.begin : block.begin + BLOCK]
        if block.content is None:
            part[:] = common.NAN
        else:
            signed, shift = block.content
            step = _block_steps(block.step if unit is None else unit, np.array(shift))
            part[:] = _values(np.array(signed), step)[: part.size]
    return values


def add(acc: np.ndarray, values: np.ndarray) -> None:
    """Add what :func:`decode` gave; where nothing was coded, not even -0 becomes +0."""
    some = values != 0  # NaN is
    with np.errstate(all="ignore"):
        acc[some] += values[some]
    acc[np.isnan(values)] = common.NAN
