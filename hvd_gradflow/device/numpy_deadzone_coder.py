"""Adaptive binary range coder of deadzone's entropy stage (G. N. N. Martin: Range encoding, 1979)."""

from __future__ import annotations

from hvd_gradflow.device.numpy_deadzone_bits import demand
from hvd_gradflow.device.wire_deadzone import BLOCK

CLASSES, UNARY, MOST_COUNTED = 28, 16, 255
_BITS, _ADAPT, _TOP = 15, 5, 1 << 24  # of a probability; the speed of its change; the least range
_ONE = 1 << _BITS

# A probability that changes: a place in a list.
Place = tuple[list[int], int]


def class_of(nearby: int) -> int:
    """The class of a sum of magnitudes: two classes for each factor of two."""
    b = (nearby + 1).bit_length() - 1
    return 2 * b + (2 * (nearby + 1) >> b & 1)


def raw_bits(c: int) -> int:
    """Low bits of a code that are not worth a decision, in a class."""
    return max(0, (c >> 1) - 6)


class Model:
    """Probabilities of a yes, and the magnitudes around that they depend on."""

    def __init__(self) -> None:
        least = [(2 | c & 1) << (c >> 1) >> 1 for c in range(CLASSES)]
        self.filled = [_ONE * v // (v + 1) for v in least]
        self.coded = [_ONE * v // (v + 33) for v in least]
        self.more = [[max(p, _ONE // 8)] * UNARY for p in self.coded]
        self.special = [_ONE >> 6]
        self.last = [0] * BLOCK
        self.sum = self.before = 0

    def block(self) -> Place:
        """Whether the next block is not empty."""
        return self.filled, class_of(self.sum + (self.before >> 1))

    def end_block(self, counted: list[int]) -> None:
        """Remember a block's magnitudes, of which each counts up to MOST_COUNTED."""
        self.last = counted + [0] * (BLOCK - len(counted))
        self.before, self.sum = self.sum, sum(counted)


def _adapt(place: Place, bit: bool) -> None:
    ps, i = place
    ps[i] += (_ONE - ps[i]) >> _ADAPT if bit else -(ps[i] >> _ADAPT)


class Encoder:
    """Decisions to bytes."""

    def __init__(self) -> None:
        self._low, self._range, self._out = 0, 2**32 - 1, bytearray()

    def put(self, bit: bool, place: Place) -> None:
        bound = (self._range >> _BITS) * place[0][place[1]]
        if bit:
            self._range = bound
        else:
            self._low += bound
            self._range -= bound
        _adapt(place, bit)
        while self._range < _TOP:
            self._range <<= 8
            self._shift()

    def _shift(self) -> None:
        if self._low >> 32:  # a carry
            at = len(self._out) - 1
            while self._out[at] == 0xFF:
                self._out[at] = 0
                at -= 1
            self._out[at] += 1
        self._out.append(self._low >> 24 & 0xFF)
        self._low = (self._low & 0xFFFFFF) << 8

    def packed(self) -> bytes:
        """End it: no decision may follow."""
        for _ in range(4):
            self._shift()
        return bytes(self._out)


class Decoder:
    """The same decisions again; zeros where there are no more bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4
        self._range, self._code = 2**32 - 1, int.from_bytes(data[:4].ljust(4, b"\0"), "big")

    def get(self, place: Place) -> bool:
        bound = (self._range >> _BITS) * place[0][place[1]]
        bit = self._code < bound
        if bit:
            self._range = bound
        else:
            self._code -= bound
            self._range -= bound
        _adapt(place, bit)
        while self._range < _TOP:
            self._range <<= 8
            byte = self._data[self._at] if self._at < len(self._data) else 0
            self._code = (self._code << 8 | byte) & 0xFFFFFFFF
            self._at += 1
        return bit

    def end(self) -> None:
        """Demand that these were all bytes, and those an encoder ends with."""
        demand(self._at == len(self._data) and self._code == 0)
