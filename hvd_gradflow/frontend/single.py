"""Reductions of single tensors, outside of an optimizer."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

# Names that we give are used again after that many, so that what is kept for a name stays bounded.
_UNNAMED = 1 << 16
_count: Counter[int] = Counter()


def unnamed(reducer: Any) -> str:
    """Return the name of the next tensor that was given none: its number, the same on all ranks."""
    name = f"allreduce.noname.{_count[id(reducer)] % _UNNAMED}"
    _count[id(reducer)] += 1
    return name


def without_feedback(codec: Any) -> Any:
    """Return `codec` for tensors without a name, hence without a past: what it loses of one is not owed."""
    if "error_feedback" in codec.get_config():
        return codec.replace(error_feedback=False)
    bare = copy.copy(codec)
    object.__setattr__(bare, "error_feedback", False)  # codecs are frozen; the reducer asks for this
    return bare
