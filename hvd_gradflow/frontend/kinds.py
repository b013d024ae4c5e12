"""Names that are told apart."""

from __future__ import annotations

from collections.abc import Iterable


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
