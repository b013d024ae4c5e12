"""What deadzone's entropy stage expects of a block, from the blocks before it (docs/wire-format.md)."""

from __future__ import annotations

from hvd_gradflow.device.numpy_range_coder import ONE

CLASSES, UNARY, MOST_COUNTED = 30, 16, 255


def class_of(nearby: int) -> int:
    """The class of a sum of magnitudes: two classes for each factor of two."""
    b = (nearby + 1).bit_length() - 1
    return 2 * b + (2 * (nearby + 1) >> b & 1)


def raw_bits(c: int) -> int:
    """Low bits of a code that are not worth a decision, in a class."""
    return max(0, (c >> 1) - 8)


class Model:
    """Probabilities of a yes, and what they depend on."""

    def __init__(self) -> None:
        least = [(2 | c & 1) << (c >> 1) >> 1 for c in range(CLASSES)]
        self.filled = [ONE * v // (v + 1) for v in least]
        self.coded = [ONE * v // (v + 97) for v in least]
        self.more = [[max(p, ONE // 8)] * UNARY for p in self.coded]
        self.special = [ONE >> 6]
        self.sum = self.before = 16  # as if there had been a few codes

    @property
    def block(self) -> int:
        """The class of the next block."""
        return class_of(2 * self.sum + self.before)

    def end_block(self, codes: list[int]) -> None:
        """Remember a block's magnitudes, of which each counts up to MOST_COUNTED."""
        self.before, self.sum = self.sum, sum(min(abs(code), MOST_COUNTED) for code in codes)
