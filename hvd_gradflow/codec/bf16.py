"""``bf16``: the upper half of a float32, rounded to nearest even."""

from dataclasses import dataclass
from typing import ClassVar

from hvd_gradflow.codec.compiled import LossyCodec
from hvd_gradflow.device import wire


@dataclass(frozen=True)
class Bf16(LossyCodec):
    """Eight significant bits and the whole range of float32; a finite value never rounds to infinity.

    Parameters
    ----------
    error_feedback : bool
        See :class:`hvd_gradflow.codec.compiled.LossyCodec`.
    """

    name: ClassVar[str] = "bf16"
    wire_id: ClassVar[int] = wire.BF16
    bits_per_element: ClassVar[float] = 16.0
