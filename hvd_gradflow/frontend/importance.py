"""How an optimizer weighs errors, by what its class is called."""

from __future__ import annotations

# Optimizers that divide each coordinate by its own size (or take its sign), by a part of their class's name.
_PER_COORDINATE = ("adam", "adagrad", "adadelta", "adafactor", "rmsprop", "rprop", "lamb", "lion", "ftrl")


def importance_of(optimizer: object) -> str:
    """Return ``coordinate`` where each coordinate counts alike, or ``energy``."""
    names = " ".join(c.__name__.lower() for c in type(optimizer).__mro__)
    return "coordinate" if any(part in names for part in _PER_COORDINATE) else "energy"
