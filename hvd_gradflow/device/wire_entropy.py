"""What all entropy coded payloads have in common: how to ask for them, and their bound."""

from __future__ import annotations

ENTROPY_BIT = 1 << 24  # of a specification's second word
_STAGES = 0xFF << 24
MOST_ELEMENTS_PER_BYTE = 512  # of a payload, header included; it bounds a decoder's work and memory
_HEADER_BYTES = 32


def entropy_of(params: tuple[int, int]) -> bool:
    """Whether payloads are to be entropy coded."""
    return bool(params[1] & ENTROPY_BIT)


def without_entropy(params: tuple[int, int]) -> tuple[int, int]:
    """The same words for payloads that are not."""
    return params[0], params[1] & ~ENTROPY_BIT


def unknown_stage(params: tuple[int, int]) -> bool:
    """Whether the words ask for an entropy stage that does not exist."""
    return bool(params[1] & _STAGES & ~ENTROPY_BIT)


def enough_bytes(n: int, length: int) -> bool:
    """Whether an entropy coded body of `length` bytes may have `n` elements."""
    return n <= MOST_ELEMENTS_PER_BYTE * (_HEADER_BYTES + length)
