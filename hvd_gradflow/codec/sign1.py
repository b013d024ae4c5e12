"""``sign1``: the sign of each value, and the mean magnitude of each block."""

from dataclasses import dataclass
from typing import ClassVar

from hvd_gradflow.codec.compiled import BlockCodec
from hvd_gradflow.device import wire


@dataclass(frozen=True)
class Sign1(BlockCodec):
    """One bit a value: plus or minus the mean magnitude of its block's values that are not zero.

    1-bit SGD (F. Seide et al.: 1-bit stochastic gradient descent and its application to data-parallel
    distributed training of speech DNNs, 2014) with the scale of S. P. Karimireddy et al. (Error feedback
    fixes SignSGD and other gradient compression schemes, 2019, section 4): the mean magnitude is what
    minimizes the squared error. A block with some zeros, but not only zeros, has another bit for each value,
    which tells which; blocks of zeros have none. Without error feedback a sign is all that ever arrives.

    Parameters
    ----------
    error_feedback, block
        See :class:`hvd_gradflow.codec.compiled.BlockCodec`.
    """

    name: ClassVar[str] = "sign1"
    wire_id: ClassVar[int] = wire.SIGN1
    bits_per_element: ClassVar[float] = 1.0
    needs_feedback: ClassVar[bool] = True
    max_elements_per_byte: ClassVar[int] = (
        wire.MAX_BLOCK // 4
    )  # blocks of zeros have a scale and nothing else

    def expected_bytes(self, n: int) -> int:
        return wire.HEADER_BYTES + wire.scale_bytes(self.spec(), n) + (n + 7) // 8
