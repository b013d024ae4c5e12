"""``fp16``: IEEE binary16 with an exponent for each block, so that nothing over- or underflows."""

from dataclasses import dataclass
from typing import ClassVar

from hvd_gradflow.codec.compiled import BlockCodec
from hvd_gradflow.device import wire


@dataclass(frozen=True)
class Fp16(BlockCodec):
    """Eleven significant bits relative to each value, down to 2**-29 of the block's largest.

    Every block is scaled by a power of two that brings its largest magnitude into [2**14, 2**15). Where plain
    binary16 neither over- nor underflows, the values are the same as with it.

    Parameters
    ----------
    block : int
        Elements that share an exponent byte; a power of two from 32 to 32768.
    """

    name: ClassVar[str] = "fp16"
    wire_id: ClassVar[int] = wire.FP16
    bits_per_element: ClassVar[float] = 16.0
