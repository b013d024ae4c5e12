"""What a parameter usually is, by its shape."""

from __future__ import annotations

from collections.abc import Sequence


def kind_of(shape: Sequence[int]) -> str:
    """Return what a parameter of this shape usually is: ``vector``, ``dense`` or ``conv``."""
    if len(shape) <= 1:
        return "vector"
    if len(shape) == 2:
        return "dense"
    return "conv" if len(shape) <= 5 else "other"
