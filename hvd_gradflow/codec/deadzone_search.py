"""The step with which ``deadzone`` encodes one array by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.device import wire_deadzone as layout
from hvd_gradflow.device.arrays import FLOAT32
from hvd_gradflow.device.wire_entropy import without_entropy

# Where and how long the search goes, in root mean squares.
_FINEST, _COARSEST, _TRIALS = 2.0**-8, 2.0**8, 11


def search_step(
    spec: dict[str, Any], name: str, asked: float, values: np.ndarray, residual: np.ndarray | None
) -> np.float32:
    """The step with which this array comes closest to what is asked for, on the side that keeps it.

    By trials, halving an interval of logarithms; with nothing but operations that IEEE 754 rounds exactly, so
    that it is the same step everywhere.

    Parameters
    ----------
    spec : dict
        Of the codec.
    name : {"similarity", "target_ratio"}
        What is asked for.
    asked : float
        Its value.
    values, residual : ndarray of float32
        What is to be encoded; neither is changed.
    """
    kernels, n = device.backend(), values.size
    if name == "similarity":  # sizes do not count
        spec = {**spec, "params": without_entropy(spec["params"])}
    out = np.empty(kernels.max_encoded_size(spec, n), np.uint8)
    ends, left = np.array([n], np.uint64), np.empty(n, np.float32)

    def attempt(step: np.float32) -> tuple[int, float]:
        """Bytes of the payload, and the sum of squares of what is lost."""
        left[:] = 0 if residual is None else residual.reshape(-1)
        steps = np.array([step], np.float32)
        size = kernels.encode_stepped(spec, ends, steps, values, left, FLOAT32, out)
        return size, kernels.energy(left)

    _, energy = attempt(np.float32(0))  # a step of 0 loses all
    low, high = _FINEST, _COARSEST
    for _ in range(_TRIALS if energy > 0 else 0):
        middle = math.sqrt(low * high)
        size, lost = attempt(layout.own_step(middle, energy, n))
        if name == "similarity":
            finer = math.sqrt(max(0.0, 1.0 - lost / energy)) < asked
        else:
            finer = 4 * n / size >= asked
        low, high = (low, middle) if finer else (middle, high)
    return layout.own_step(low if name == "similarity" else high, energy, n)
