"""``none``: float32 as it is, with header and checksum."""

from dataclasses import dataclass
from typing import ClassVar

from hvd_gradflow.codec.compiled import KernelCodec
from hvd_gradflow.device import wire


@dataclass(frozen=True)
class NoneCodec(KernelCodec):
    """Float32 as it is; with a residual it sends what was held back before, and nothing remains."""

    name: ClassVar[str] = "none"
    wire_id: ClassVar[int] = wire.NONE
    lossy: ClassVar[bool] = False
    bits_per_element: ClassVar[float] = 32.0
