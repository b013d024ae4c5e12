"""deadzone's entropy stage: packed bodies to shorter ones and back (docs/wire-format.md)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from hvd_gradflow.device.numpy_bits import Impossible, Reader, Writer, demand
from hvd_gradflow.device.numpy_deadzone_bits import MAX_SHIFT, NONFINITE, get_block, put_block
from hvd_gradflow.device.numpy_deadzone_model import UNARY, Model, raw_bits
from hvd_gradflow.device.numpy_range_coder import Decoder, Encoder
from hvd_gradflow.device.wire_deadzone import (
    BLOCK,
    GROUP,
    SUM_BITS,
    read_segments,
    read_tables,
    write_tables,
)
from hvd_gradflow.device.wire_entropy import enough_bytes

# Signed codes and shift of a block; None if it is not finite.
Content = tuple[list[int], int] | None


def squeeze(_spec: dict[str, Any], body: bytes, n: int) -> bytes:
    """Return the entropy coded form of a packed body, or that itself if it is not longer."""
    tables = read_tables(np.frombuffer(body, np.uint8), n)
    assert tables is not None
    at, left, group = tables.data, n, 0
    coder, raw, model = Encoder(), Writer(), Model()
    for blocks in tables.blocks():
        for first in range(0, blocks, GROUP):
            data = body[at : at + int(tables.sizes[group])]
            at, group = at + len(data), group + 1
            filled, r = int.from_bytes(data[:4], "little"), Reader(data[4:])
            for i in range(min(GROUP, blocks - first)):
                some = bool(filled >> i & 1)
                coder.put(some, (model.filled, model.block))
                if some:
                    _put(coder, raw, model, get_block(r), min(left, BLOCK))
                else:
                    model.end_block([])
                left -= BLOCK
    front, streams = body[: tables.front], (coder.packed(), raw.packed())
    made = front + struct.pack("<I", len(streams[0])) + b"".join(streams)
    return made if len(made) < len(body) and enough_bytes(n, len(made)) else body


def unsqueeze(_spec: dict[str, Any], body: np.ndarray, n: int) -> bytes | None:
    """Return the packed form of an entropy coded body, or None where no encoder made that."""
    segments, data = read_segments(body, n), body.tobytes()
    if segments is None or len(data) < segments.front + 4 or not enough_bytes(n, len(data)):
        return None
    (size,) = struct.unpack_from("<I", data, segments.front)
    streams = data[segments.front + 4 :]
    if size > len(streams):
        return None
    coder, raw, model = Decoder(streams[:size]), Reader(streams[size:]), Model()
    groups, left = [], n
    try:
        for blocks in segments.blocks():
            for first in range(0, blocks, GROUP):
                w, filled = Writer(), 0
                for i in range(min(GROUP, blocks - first)):
                    if coder.get((model.filled, model.block)):
                        filled |= 1 << i
                        _pack(w, _get(coder, raw, model, min(left, BLOCK)))
                    else:
                        model.end_block([])
                    left -= BLOCK
                groups.append(filled.to_bytes(4, "little") + w.packed() if filled else b"")
        coder.end()
        demand(raw.left < 8 and raw.number == 0)
    except Impossible:
        return None
    return write_tables(segments.ends, segments.steps, [len(g) for g in groups]) + b"".join(groups)


def _pack(w: Writer, content: Content) -> None:
    if content is None:
        w.put(NONFINITE, 4)
    else:
        put_block(w, *content)


def _put(coder: Encoder, raw: Writer, model: Model, content: Content, count: int) -> None:
    """Write a block of `count` elements that is not empty."""
    special = model.special, 0
    if content is None:
        coder.put(True, special)
        raw.put(1, 1)
        model.end_block([])
        return
    codes, shift = content
    coder.put(shift > 0, special)
    if shift:
        raw.put(0, 1)
        raw.put(shift, 7)
    c = model.block
    k = raw_bits(c)
    for code in codes[:count]:
        coder.put(code != 0, (model.coded, c))
    for code in filter(None, codes):
        low, high = abs(code) - 1 & (1 << k) - 1, abs(code) - 1 >> k
        raw.put(low, k)
        for j in range(min(high + 1, UNARY)):
            coder.put(high > j, (model.more[c], j))
        if high >= UNARY:
            rest = high - UNARY + 1
            bits = rest.bit_length() - 1
            raw.put(bits, 5)
            raw.put(rest - (1 << bits), bits)
    raw.put_each([int(code < 0) for code in codes if code])
    model.end_block(codes)


def _get(coder: Decoder, raw: Reader, model: Model, count: int) -> Content:
    shift = 0
    if coder.get((model.special, 0)):
        if raw.get(1):
            model.end_block([])
            return None
        shift = raw.get(7)
        demand(1 <= shift <= MAX_SHIFT)
    codes = [0] * BLOCK
    c = model.block
    k = raw_bits(c)
    places = [i for i in range(count) if coder.get((model.coded, c))]
    demand(bool(places))
    for i in places:
        low, high = raw.get(k), 0
        while high < UNARY and coder.get((model.more[c], high)):
            high += 1
        if high == UNARY:
            bits = raw.get(5)
            demand(bits < SUM_BITS)
            high += (1 << bits) + raw.get(bits) - 1
        demand(high < 1 << SUM_BITS >> k)
        codes[i] = (high << k | low) + 1
    for i, negative in zip(places, raw.get_each(len(places))):
        codes[i] = -codes[i] if negative else codes[i]
    model.end_block(codes)
    return codes, shift
