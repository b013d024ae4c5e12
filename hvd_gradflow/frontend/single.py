"""Reductions of single tensors, outside of an optimizer."""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

# Names that we give are used again after that many, so that what is kept for a name stays bounded.
_UNNAMED = 1 << 16
_count: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def unnamed(reducer: Any) -> str:
    """Return the name of the next tensor that was given none: its number, the same on all ranks."""
    number = _count.get(reducer, 0)
    _count[reducer] = number + 1
    return f"allreduce.noname.{number % _UNNAMED}"


def without_feedback(codec: Any) -> Any:
    """Return `codec` for tensors without a name, hence without a past: what it loses of one is not owed."""
    if "error_feedback" in codec.get_config():
        return codec.replace(error_feedback=False)
    bare = copy.copy(codec)
    object.__setattr__(bare, "error_feedback", False)  # codecs are frozen; the reducer asks for this
    return bare
