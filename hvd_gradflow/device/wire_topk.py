"""What is particular to topk's specification and payloads, and the code of ascending indices.

docs/wire-format.md (sections topk and "Indices") and ``gf_codec_spec`` in cython_ext/gf_api.h.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from hvd_gradflow.errors import WireError

FRONT_BYTES = 8  # the number of elements that follow
ELEMENTS_PER_BYTE = 1 << 20  # of a body, at most: what a decoder allocates is bounded by what arrives


def pack_params(ratio: float) -> tuple[int, int]:
    """Return the specification's two words."""
    return struct.unpack("<Q", struct.pack("<d", ratio))[0], 0


def ratio_of(params: tuple[int, int]) -> float:
    """Return the ratio; the reverse of :func:`pack_params`."""
    return float(struct.unpack("<d", struct.pack("<Q", params[0]))[0])


def fault(spec: dict[str, Any]) -> str | None:
    """Return why a specification of topk cannot be used, or None."""
    if spec["bits"]:
        return "bits do not belong to this codec"
    if spec["rounding"]:
        return "this codec rounds to nearest only"
    if spec["block"] != 1:
        return "this codec has no blocks: block must be 1"
    if spec["params"][1] or not 0.0 < ratio_of(spec["params"]) <= 1.0:
        return "ratio must be above 0 and at most 1"
    return None


def kept(ratio: float, n: int) -> int:
    """Return how many of `n` elements are sent, if there are so many that are not zero."""
    return min(n, math.ceil(ratio * n))


def rice_parameter(n: int, k: int) -> int:
    """Return the parameter b of the Rice code of `k` ascending indices below `n`.

    The largest b with 2^b <= n/k - 1/2, which is the mean gap and a half; 0 if there is none. For gaps with a
    geometric distribution that is the best one, or next to it (A. Kiely: Selecting the Golomb parameter in
    Rice coding, 2004).
    """
    return max(0, ((2 * n - k) // (2 * k)).bit_length() - 1) if k else 0


def max_index_bytes(n: int, k: int) -> int:
    """Most bytes of the code of `k` ascending indices below `n`.

    With parameter b it has k (1 + b) bits and at most (n - k) / 2^b more, which is less than 2 k.
    """
    return 1 + (k * (3 + rice_parameter(n, k)) + 7) // 8


def max_body(n: int) -> int:
    """Most bytes of a body of `n` elements: all of them may have to be sent.

    The indices of any number k of them take at most 1.1 n bits: n if b = 0, and otherwise
    k (1 + b) + (n - k) / 2^b, where k (2^b + 1/2) <= n.
    """
    return FRONT_BYTES + 4 * n + 1 + (n + n // 8 + 7) // 8


def check_indices(indices: np.ndarray, n: int, out: np.ndarray) -> None:
    """Refuse with ValueError what has no code, or no room for it in `out` (uint8)."""
    if indices.size and (indices[0] < 0 or indices[-1] >= n or (np.diff(indices) <= 0).any()):
        raise ValueError(
            f"indices from {indices.min()} to {indices.max()}: expected ascending ones below {n}"
        )
    if out.size < max_index_bytes(n, indices.size):
        raise ValueError(f"out has {out.size} bytes, expected at least {max_index_bytes(n, indices.size)}")


def check_index_code(valid: bool, code: np.ndarray, n: int, out: np.ndarray) -> None:
    """Raise WireError unless a code was found `valid`."""
    if not valid:
        raise WireError(
            f"{code.size} bytes are not the code of {out.size} ascending indices below {n}: damaged"
        )
