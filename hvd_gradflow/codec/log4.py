"""``log4``: sign and three bits of exponent for each value, an exponent for each block."""

from dataclasses import dataclass
from typing import ClassVar

from hvd_gradflow.codec.compiled import RoundingCodec
from hvd_gradflow.device import wire


@dataclass(frozen=True)
class Log4(RoundingCodec):
    """Zero and seven powers of two, down from the one next to the block's largest magnitude.

    Natural compression and natural dithering (S. Horváth et al.: Natural compression for distributed deep
    learning, 2019, sections 2 and 4) with a binary scale for each block. With ``rounding="nearest"`` a value
    above the lowest level is off by at most a third of itself; with ``"stochastic"`` the block's exponent is
    rounded up, so that the expected value is exact. Parameters: see
    :class:`hvd_gradflow.codec.compiled.RoundingCodec`.
    """

    name: ClassVar[str] = "log4"
    wire_id: ClassVar[int] = wire.LOG4
    bits_per_element: ClassVar[float] = 4.0
    edges: ClassVar[tuple[float, ...]] = (2.0**-7, *(0.75 * 2.0**k for k in range(-5, 1)))
