"""Layers that a user names."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.errors import ConfigError


def layers(given: Any) -> list[Any]:
    """Return layers, given one, several or none, as a list."""
    if given is None:
        return []
    found = [given] if hasattr(given, "trainable_weights") else list(given)
    for layer in found:
        if not hasattr(layer, "trainable_weights"):
            raise ConfigError(f"local_layers: {layer!r} is no Keras layer")
    return found
