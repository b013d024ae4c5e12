"""``topk``: the largest values, as they are, and where they stand."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.compiled import LossyCodec
from hvd_gradflow.device import wire
from hvd_gradflow.device import wire_topk as layout
from hvd_gradflow.errors import ConfigError

WARMUP_RATIO = 0.25


@dataclass(frozen=True)
class Topk(LossyCodec):
    """The largest values of each chunk, exact; all others wait in the residual.

    A. F. Aji, K. Heafield: Sparse communication for distributed gradient descent, 2017; D. Alistarh et al.:
    The convergence of sparsified gradient methods, 2018. Of equal magnitudes the first ones are taken, zeros
    never. Places are sent as gaps in Rice codes (R. F. Rice: Some practical universal noiseless coding
    techniques, 1979). In a reduction every node sends its largest values, and the sum of what was sent is
    exact: it travels on with all of its values.

    Parameters
    ----------
    error_feedback : bool
        See :class:`hvd_gradflow.codec.compiled.LossyCodec`.
    ratio : float
        The part of a chunk's elements that each node sends, above 0 and at most 1, rounded up.
    warmup_steps : int
        Of a stream of gradients: the steps in which the part falls from a quarter to `ratio`, by the same
        factor in each (Y. Lin et al.: Deep gradient compression, 2018, section 3.3). 0: none. Arrays that are
        reduced by themselves have no steps.
    """

    ratio: float = 0.01
    warmup_steps: int = 0

    name: ClassVar[str] = "topk"
    wire_id: ClassVar[int] = wire.TOPK
    bits_per_element: ClassVar[float] = 0.4
    max_elements_per_byte: ClassVar[int] = layout.ELEMENTS_PER_BYTE
    needs_feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        words = "a number above 0 and at most 1"
        try:
            if isinstance(self.ratio, (bool, str)):
                raise TypeError
            object.__setattr__(self, "ratio", float(self.ratio))
        except (TypeError, ValueError):
            raise ConfigError(f"codec {self.name!r}: ratio={self.ratio!r}: expected {words}") from None
        if not 0.0 < self.ratio <= 1.0:
            raise ConfigError(f"codec {self.name!r}: ratio={self.ratio!r}: expected {words}")
        steps = self.warmup_steps
        if isinstance(steps, bool) or not hasattr(steps, "__index__") or operator.index(steps) < 0:
            raise ConfigError(f"codec {self.name!r}: warmup_steps={steps!r}: expected an integer, 0 or more")
        object.__setattr__(self, "warmup_steps", operator.index(steps))

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "params": layout.pack_params(self.ratio)}

    def at_step(self, step: int) -> Codec:
        if step >= self.warmup_steps or self.ratio >= WARMUP_RATIO:
            return self
        ratio = WARMUP_RATIO * (self.ratio / WARMUP_RATIO) ** (step / self.warmup_steps)
        # Machines differ in the last bit of a power, and ranks must not.
        return self.replace(ratio=float(f"{ratio:.4g}"), warmup_steps=0)

    def for_sums(self) -> Codec:
        return self.replace(ratio=1.0, warmup_steps=0)

    def expected_bytes(self, n: int) -> int:
        k = layout.kept(self.ratio, n)
        # A gap's mean over 2^b is from 1 to 2: 1.5 zeros, more or less.
        bits = k * (2.5 + layout.rice_parameter(n, k)) if self.ratio < 1.0 else n
        return min(
            wire.HEADER_BYTES + layout.FRONT_BYTES + 1 + 4 * k + round(bits / 8), self.max_encoded_size(n)
        )
