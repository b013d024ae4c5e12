"""``int8``, ``int4`` and ``int2``: one symmetric uniform quantizer, a scale for each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_gradflow.codec.compiled import RoundingCodec
from hvd_gradflow.device import wire


def _edges(bits: int) -> tuple[float, ...]:
    levels = 2 ** (bits - 1) - 1
    return tuple((k - 0.5) / levels for k in range(1, levels + 1))


@dataclass(frozen=True)
class Uniform(RoundingCodec):
    """Codes from -Q to Q, where Q = 2**(bits - 1) - 1 stands for the block's largest magnitude.

    The error is at most half a step, ``maximum / Q / 2``, with ``rounding="nearest"``, and a step with
    ``"stochastic"``. Parameters: see :class:`hvd_gradflow.codec.compiled.RoundingCodec`.
    """


@dataclass(frozen=True)
class Int8(Uniform):
    """127 steps to each side of zero."""

    name: ClassVar[str] = "int8"
    wire_id: ClassVar[int] = wire.INT8
    bits_per_element: ClassVar[float] = 8.0
    code_bits: ClassVar[int] = 8
    edges: ClassVar[tuple[float, ...]] = _edges(8)


@dataclass(frozen=True)
class Int4(Uniform):
    """7 steps to each side of zero."""

    name: ClassVar[str] = "int4"
    wire_id: ClassVar[int] = wire.INT4
    bits_per_element: ClassVar[float] = 4.0
    code_bits: ClassVar[int] = 4
    edges: ClassVar[tuple[float, ...]] = _edges(4)


@dataclass(frozen=True)
class Int2(Uniform):
    """Minus one, zero, one (ternary)."""

    name: ClassVar[str] = "int2"
    wire_id: ClassVar[int] = wire.INT2
    bits_per_element: ClassVar[float] = 2.0
    code_bits: ClassVar[int] = 2
    edges: ClassVar[tuple[float, ...]] = _edges(2)
