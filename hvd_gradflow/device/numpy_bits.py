"""Bits in and out of the reference backend's bodies, the first one into the lowest bit of the first byte."""

from __future__ import annotations


class Writer:
    """Bits, one after another."""

    def __init__(self) -> None:
        self.number = self.count = 0

    def put(self, value: int, bits: int) -> None:
        self.number |= value << self.count
        self.count += bits

    def put_each(self, bits: list[int]) -> None:
        for bit in bits:
            self.put(bit, 1)

    def packed(self) -> bytes:
        return self.number.to_bytes(-(-self.count // 8), "little")


class Impossible(Exception):
    """No encoder writes such bits."""


def demand(condition: bool) -> None:
    """Raise :class:`Impossible` unless it is so."""
    if not condition:
        raise Impossible


class Reader:
    """The same bits again; raises :class:`Impossible` where there are no more."""

    def __init__(self, data: bytes) -> None:
        self.number, self.left = int.from_bytes(data, "little"), 8 * len(data)

    def get(self, bits: int) -> int:
        demand(bits <= self.left)
        value = self.number & ((1 << bits) - 1)
        self.number >>= bits
        self.left -= bits
        return value

    def get_each(self, count: int) -> list[int]:
        return [self.get(1) for _ in range(count)]
