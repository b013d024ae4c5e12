"""What a parameter usually is, by its shape; and names that are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def kind_of(shape: Sequence[int]) -> str:
    """Return what a parameter of this shape usually is: ``vector``, ``dense`` or ``conv``."""
    if len(shape) <= 1:
        return "vector"
    if len(shape) == 2:
        return "dense"
    return "conv" if len(shape) <= 5 else "other"


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return names, each of its own: the n-th of equal ones has ``#n`` after it."""
    seen = set(taken)
    result = []
    for name in names:
        unique, n = name, 1
        while unique in seen:
            n += 1
            unique = f"{name}#{n}"
        seen.add(unique)
        result.append(unique)
    return result
