"""Adaptive binary range coder of the entropy stages (G. N. N. Martin: Range encoding, 1979)."""

from __future__ import annotations

from hvd_gradflow.device.numpy_bits import demand

_BITS, _ADAPT = 15, 5  # of a probability; the speed of its change
_HALF, _WHOLE = (1 << 32) - 1, (1 << 64) - 1
ONE = 1 << _BITS

# A probability that changes: a place in a list.
Place = tuple[list[int], int]


def _adapt(place: Place, bit: bool) -> None:
    ps, i = place
    ps[i] += (ONE - ps[i]) >> _ADAPT if bit else -(ps[i] >> _ADAPT)


class Encoder:
    """Decisions to bytes."""

    def __init__(self) -> None:
        self._low, self._range, self._out = 0, _WHOLE, bytearray()

    def put(self, bit: bool, place: Place) -> None:
        bound = (self._range >> _BITS) * place[0][place[1]]
        if bit:
            self._range = bound
        else:
            self._low += bound
            self._range -= bound
        _adapt(place, bit)
        if self._range <= _HALF:
            self._range <<= 32
            self._put_word()

    def _put_word(self) -> None:
        if self._low > _WHOLE:  # a carry
            whole = int.from_bytes(self._out, "big") + 1
            self._out = bytearray(whole.to_bytes(len(self._out), "big"))
        self._out += (self._low >> 32 & _HALF).to_bytes(4, "big")
        self._low = (self._low & _HALF) << 32

    def packed(self) -> bytes:
        """End it: no decision may follow."""
        self._low += _HALF  # the one number within the range whose lower half is zero
        self._put_word()
        return bytes(self._out)


class Decoder:
    """The same decisions again; zeros where there are no more bytes."""

    def __init__(self, data: bytes) -> None:
        self._words = [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data) - 3, 4)]
        self._whole, self._at = len(data) % 4 == 0, 0
        self._range, self._code = _WHOLE, self._next() << 32
        self._code |= self._next()

    def _next(self) -> int:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else 0

    def get(self, place: Place) -> bool:
        bound = (self._range >> _BITS) * place[0][place[1]]
        bit = self._code < bound
        if bit:
            self._range = bound
        else:
            self._code -= bound
            self._range -= bound
        _adapt(place, bit)
        if self._range <= _HALF:
            self._range <<= 32
            self._code = (self._code << 32 | self._next()) & _WHOLE
        return bit

    def end(self) -> None:
        """Demand that these were all bytes, and those an encoder ends with."""
        demand(self._whole and self._at == len(self._words) + 1 and self._code <= _HALF)
