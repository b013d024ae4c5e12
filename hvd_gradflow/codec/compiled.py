"""What the built-in codecs share: encoding and decoding by the kernels of a backend."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.code_lengths import laplace_bits
from hvd_gradflow.device import wire
from hvd_gradflow.device.arrays import FLOAT32
from hvd_gradflow.device.wire_entropy import ENTROPY_BIT, MOST_ELEMENTS_PER_BYTE
from hvd_gradflow.errors import ConfigError, WireError

ROUNDINGS = ("nearest", "stochastic")


@dataclass(frozen=True)
class KernelCodec(Codec):
    """A codec whose payloads are made by the kernels ``encode``, ``decode`` and ``decode_add``.

    Attributes
    ----------
    max_elements_per_byte : int
        A header that announces more is wrong, and nothing is allocated for it; 4 suffice for two bits. Of
        entropy coded payloads the wire format says how many.
    """

    max_elements_per_byte: ClassVar[int] = 4

    def encode(
        self,
        x: Any,
        *,
        residual: np.ndarray | None = None,
        key: int | None = None,
        first: int = 0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        kernels, spec = device.backend(), self.spec()
        values, dtype = floats_of(x)
        if residual is not None:
            residual = flat_floats(residual, "residual", values.size)
        if key is None:
            key = kernels.dither_key(spec["seed"], 0, 0, 0, 0) if spec["rounding"] else 0
        if out is None:
            out = np.empty(self.max_encoded_size(values.size), np.uint8)
        return out[: kernels.encode(spec, values, residual, key, first, dtype, out)]

    def decode(self, payload: Any, out: np.ndarray | None = None) -> np.ndarray:
        data = payload_bytes(payload)
        if out is None:
            out = np.empty(self._count(data), np.float32)
        device.backend().decode(self.spec(), data, flat_floats(out, "out", None))
        return out

    def decode_add(self, payload: Any, acc: np.ndarray) -> np.ndarray:
        device.backend().decode_add(self.spec(), payload_bytes(payload), flat_floats(acc, "acc", None))
        return acc

    def max_encoded_size(self, n: int) -> int:
        return wire.HEADER_BYTES + wire.body_bytes(self.spec(), n)

    def _count(self, data: np.ndarray) -> int:
        """Number of elements that the header announces, if so many can be in there."""
        header = wire.Header.unpack(data)
        if header.codec != self.wire_id:
            wire.check(wire.BAD_CODEC, self.spec(), data, header.count)
        coded = header.flags & wire.FLAG_ENTROPY
        if header.count > (MOST_ELEMENTS_PER_BYTE if coded else self.max_elements_per_byte) * data.size:
            raise WireError(f"payload of {data.size} bytes announces {header.count} elements: damaged")
        return header.count


@dataclass(frozen=True)
class LossyCodec(KernelCodec):
    """A codec whose rounding error a reduction keeps, and adds to what it encodes next.

    Parameters
    ----------
    error_feedback : bool
        False: what is lost is lost, and no memory is spent on it.
    """

    error_feedback: bool = True

    def __post_init__(self) -> None:
        self._check_flag("error_feedback")

    def _check_flag(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise ConfigError(f"codec {self.name!r}: {name}={value!r}: expected True or False")


@dataclass(frozen=True)
class BlockCodec(LossyCodec):
    """A codec with a scale for each block of elements.

    Parameters
    ----------
    error_feedback : bool
        See :class:`LossyCodec`.
    block : int
        Elements of a block, a power of two from 32 to 32768. Smaller blocks follow the values more closely
        and cost more scales.
    """

    block: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            object.__setattr__(self, "block", operator.index(self.block))
        except TypeError:
            raise ConfigError(f"codec {self.name!r}: block={self.block!r}: expected an integer") from None
        if not wire.MIN_BLOCK <= self.block <= wire.MAX_BLOCK or self.block & (self.block - 1):
            raise ConfigError(
                f"codec {self.name!r}: block={self.block}: expected a power of two from {wire.MIN_BLOCK}"
                f" to {wire.MAX_BLOCK}"
            )

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "block": self.block}


@dataclass(frozen=True)
class RoundingCodec(BlockCodec):
    """A codec with blocks that rounds to nearest or stochastically.

    Parameters
    ----------
    error_feedback, block
        See :class:`BlockCodec`.
    rounding : {"nearest", "stochastic"}
        Nearest has the smaller error and goes with error feedback; stochastic is unbiased without it.
    seed : int
        Of the stochastic rounding, 0 to 2**64 - 1; must be the same on all ranks, which differ by themselves.
    entropy : bool
        Code the payloads once more, where that makes them shorter: the same values in fewer bytes, at a
        fraction of the speed, for thin links. Payloads of either kind are read in any case.
    """

    rounding: str = "nearest"
    seed: int = 0
    entropy: bool = False

    code_bits: ClassVar[int] = 0  # gf_codec_spec.bits
    edges: ClassVar[tuple[float, ...]] = ()  # magnitudes where codes begin, in units of the block's largest

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounding not in ROUNDINGS:
            raise ConfigError(
                f"codec {self.name!r}: rounding={self.rounding!r}: expected one of {', '.join(ROUNDINGS)}"
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise ConfigError(
                f"codec {self.name!r}: seed={self.seed!r}: expected an integer from 0 to 2**64 - 1"
            )
        self._check_flag("entropy")

    def spec(self) -> dict[str, Any]:
        rounding, params = ROUNDINGS.index(self.rounding), (0, ENTROPY_BIT * self.entropy)
        own = {"bits": self.code_bits, "rounding": rounding, "seed": self.seed, "params": params}
        return {**super().spec(), **own}

    def expected_bytes(self, n: int) -> int:
        most = self.max_encoded_size(n)
        if not self.entropy:
            return most
        around = wire.HEADER_BYTES + wire.scale_bytes(self.spec(), n) + 4
        return min(around + round(n * laplace_bits(self.edges, self.block) / 8), most)


def floats_of(x: Any) -> tuple[np.ndarray, int]:
    """Return an array's elements as float32, one dimension, and the type that they had."""
    view = device.contiguous(x)
    if view.dtype == FLOAT32:
        return view.numpy().reshape(-1), view.dtype
    values = np.empty(view.size, np.float32)
    device.backend().load_f32(view, values)
    return values, view.dtype


def payload_bytes(payload: Any) -> np.ndarray:
    try:
        return np.frombuffer(payload, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(payload, np.ndarray) and payload.dtype == np.uint8:
            return np.ascontiguousarray(payload).reshape(-1)
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return np.frombuffer(bytes(payload), np.uint8)
        raise TypeError(
            f"payload of type {type(payload).__name__}: expected bytes or a uint8 array"
        ) from error


def flat_floats(array: np.ndarray, what: str, size: int | None) -> np.ndarray:
    """The array as one dimension, if it is one that kernels can write to."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise TypeError(f"{what} of type {getattr(array, 'dtype', type(array))}: expected a float32 ndarray")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError(f"{what} must be contiguous and writable")
    if size is not None and array.size != size:
        raise ValueError(f"{what} has {array.size} elements, expected {size}")
    return array.reshape(-1)
