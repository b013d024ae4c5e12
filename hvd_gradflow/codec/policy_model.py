"""What a codec is expected to cost and to lose, before it was ever tried on a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

CHUNK_ELEMENTS = 65536  # elements of one payload at the default GRADFLOW_CHUNK_KIB
MESSAGE_BYTES = 48  # around a payload: the engine's own header, and the three energies of a tensor
# Of a bucket, in each step: all ranks but the first announce it, and the first lets it go. Measured: 175, a
# rank's share between two ranks, as are all other bytes here.
BUCKET_BYTES = 192
# Relative error of log4, nearest, on Gaussian, Laplace and Student-t (3 degrees of freedom) samples in blocks
# of 64 to 4096: 0.0378 to 0.042 (tests/codec/test_policy_model.py measures it again).
LOG4_ERROR = 0.038
MEAN_SQUARE_SIGNIFICAND = 1.85  # of the same samples, weighted by energy
SIGN1_ERROR = 0.5  # one less the mean magnitude squared over the mean square: 0.36 (Gauss), 0.5, 0.59
WORST_ERROR = 0.7  # of int2, which keeps the largest values of a block only; the same samples: 0.6 to 0.8


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a shape; 1 for a scalar."""
    return math.prod(shape)


def plain_bytes(n: int, dtype: str) -> int:
    """Bytes of `n` uncompressed elements on the wire (float64 stays, everything else travels as float32)."""
    return n * (8 if dtype == "float64" else 4)


def message_bytes(n: int) -> int:
    """Bytes around the payloads of `n` elements; tensors that share a payload need fewer."""
    return -(-n // CHUNK_ELEMENTS) * MESSAGE_BYTES


def encoded_bytes(codec: Any, n: int) -> int:
    """Bytes of `n` elements as one tensor of a bucket: filled up to whole blocks, a header for each chunk."""
    block = codec.get_config().get("block") or 1
    n = -(-n // block) * block
    whole, rest = divmod(n, CHUNK_ELEMENTS)
    return whole * codec.expected_bytes(CHUNK_ELEMENTS) + (codec.expected_bytes(rest) if rest else 0)


def crest_energy(block: int) -> float:
    """Expected maximum squared over mean square in a block of Laplace-distributed values.

    The expected maximum of `n` exponential variables is the n-th harmonic number, about ``ln n + 0.577``
    (Rényi 1953); gradients resemble Laplace more than Gauss.
    """
    return max(1.0, (math.log(max(block, 1)) + 0.5772) ** 2 / 2.0)


def rounding_error(codec: Any) -> float:
    """Expected energy of the error of one encoding, over the energy of what is encoded."""
    if not codec.lossy:
        return 0.0
    config = codec.get_config()
    stochastic = (
        2.0 if config.get("rounding") == "stochastic" else 1.0
    )  # variance step²/6 instead of step²/12
    if codec.name == "log4":
        return stochastic * LOG4_ERROR
    if codec.name in ("bf16", "fp16"):
        step = 2.0**-7 if codec.name == "bf16" else 2.0**-10
        return step**2 / 12.0 / MEAN_SQUARE_SIGNIFICAND
    if getattr(codec, "stepped", False):
        return deadzone_error(codec)
    if codec.name == "sign1":
        return SIGN1_ERROR
    if codec.name == "topk":
        return topk_error(codec.ratio)
    levels = 2 ** (round(codec.bits_per_element) - 1) - 1  # positive levels of a symmetric uniform quantizer
    step_energy = crest_energy(config.get("block") or 1) / max(levels, 1) ** 2
    return min(stochastic * step_energy / 12.0, WORST_ERROR)


def topk_error(ratio: float) -> float:
    """Expected energy of all but the largest values over that of all, of Laplace-distributed ones.

    Their magnitudes x have the density exp(-x): those above ln(1/ratio) are the largest, and the integral of
    x² exp(-x) over them, over its whole (2), is what is sent.
    """
    border = math.log(1.0 / ratio)
    return max(0.0, 1.0 - ratio * (border**2 / 2.0 + border + 1.0))


def deadzone_error(codec: Any) -> float:
    """Expected energy lost over energy, of deadzone.

    Under a ratio as for a Gaussian source, ``D = 2^(-2R)`` (Cover and Thomas 2006, section 10.3): real
    gradients, whose blocks differ in size, lose less, and the code needs a little more than this bound; the
    two about make up for each other.
    """
    name, value = codec.control
    if name == "target_ratio":
        return min(2.0 ** (-64.0 / value), WORST_ERROR)
    return 1.0 - value**2 if name == "similarity" else min(value**2 / 12.0, WORST_ERROR)


def expected_error(codec: Any) -> float:
    """Expected residual energy over gradient energy, once error feedback has settled.

    With a relative error d of one encoding, and a residual e that is not correlated with the next gradient g,
    ``|e|² = d (|g|² + |e|²)``, so the ratio is ``d / (1 - d)``.
    """
    error = rounding_error(codec)
    return error / (1.0 - error) if codec.get_config().get("error_feedback", True) else error
