"""Entropy stage of the codes of fixed width (int8, int4, int2, log4): bodies to shorter ones and back.

Each code is its magnitude's *kind*, in decisions that depend on how large those before it were, and bits that
are as good as random (docs/wire-format.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common
from hvd_gradflow.device import wire
from hvd_gradflow.device.numpy_bits import Impossible, Reader, Writer, demand
from hvd_gradflow.device.numpy_range_coder import ONE, Decoder, Encoder
from hvd_gradflow.device.wire_entropy import enough_bytes

CLASSES = 13  # the most binary digits of Model.nearby, and none


class Model:
    """Probabilities of a yes, and the magnitudes nearby, on which they depend."""

    def __init__(self, bits: int) -> None:
        self.digits = 1 if bits == 2 else 3  # of a kind
        self.places = [[ONE // 2] * 2**self.digits for _ in range(CLASSES)]
        self.nearby = 0

    @property
    def now(self) -> list[int]:
        """The next element's: a decision's place has, after a 1, the digits before it."""
        return self.places[self.nearby.bit_length()]

    def see(self, magnitude: int) -> None:
        """Remember a magnitude."""
        nearby = self.nearby + 8 * magnitude
        self.nearby = nearby - (nearby >> 2)


def squeeze(spec: dict[str, Any], body: bytes, n: int) -> bytes:
    """Return the entropy coded form of a body, or that itself if it is not longer."""
    bits, front = wire.CODECS[spec["id"]][1], wire.scale_bytes(spec, n)
    codes = common.unpack_codes(np.frombuffer(body[front:], np.uint8), bits, n)
    if spec["id"] == wire.LOG4:
        magnitudes, signs = codes & 7, codes >> 3
    else:
        signs = codes >> (bits - 1)
        magnitudes = np.where(signs, 2**bits - codes, codes)
    coder, raw, model = Encoder(), Writer(), Model(bits)
    for begin, end in _coded_blocks(spec, body, n):
        for magnitude, sign in zip(magnitudes[begin:end].tolist(), signs[begin:end].tolist()):
            kind = magnitude.bit_length() if bits == 8 else magnitude
            places, node = model.now, 1
            for digit in reversed(range(model.digits)):
                yes = kind >> digit & 1
                coder.put(bool(yes), (places, node))
                node = 2 * node + yes
            if kind:
                low = kind - 1 if bits == 8 else 0
                raw.put(magnitude & ((1 << low) - 1), low)
                raw.put(sign, 1)
            model.see(magnitude)
    streams = coder.packed(), raw.packed()
    made = body[:front] + struct.pack("<I", len(streams[0])) + b"".join(streams)
    return made if len(made) < len(body) and enough_bytes(n, len(made)) else body


def unsqueeze(spec: dict[str, Any], body: np.ndarray, n: int) -> bytes | None:
    """Return the form with fixed widths of an entropy coded body, or None where no encoder made that."""
    bits, front, data = wire.CODECS[spec["id"]][1], wire.scale_bytes(spec, n), body.tobytes()
    if not front + 4 <= len(data) < wire.body_bytes(spec, n) or not enough_bytes(n, len(data)):
        return None
    (size,) = struct.unpack_from("<I", data, front)
    streams = data[front + 4 :]
    if size > len(streams):
        return None
    coder, raw, model = Decoder(streams[:size]), Reader(streams[size:]), Model(bits)
    codes = np.zeros(n, np.int64)
    try:
        for begin, end in _coded_blocks(spec, data, n):
            for i in range(begin, end):
                places, node = model.now, 1
                for _ in range(model.digits):
                    node = 2 * node + coder.get((places, node))
                magnitude = kind = node - 2**model.digits
                if kind:
                    if bits == 8:
                        magnitude = 1 << kind - 1 | raw.get(kind - 1)
                    negative = raw.get(1)
                    if spec["id"] == wire.LOG4:
                        codes[i] = magnitude + 8 * negative
                    else:
                        codes[i] = -magnitude if negative else magnitude
                model.see(magnitude)
        coder.end()
        demand(raw.left < 8 and raw.number == 0)
    except Impossible:
        return None
    return data[:front] + common.pack_codes(codes, bits, n)


def _coded_blocks(spec: dict[str, Any], body: bytes, n: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each block whose codes mean something, by its scale or exponent."""
    kind, not_finite = ("u1", 255) if spec["id"] == wire.LOG4 else ("<u4", 0x7F800000)
    scales = np.frombuffer(body, kind, -(-n // spec["block"]))
    for i in np.flatnonzero((scales > 0) & (scales < not_finite)).tolist():
        yield i * spec["block"], min((i + 1) * spec["block"], n)
