"""``powersgd``: a matrix as the product of two thin ones."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.codec import low_rank, wire
from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.compiled import flat_floats, payload_bytes
from hvd_gradflow.device.arrays import FLOAT32
from hvd_gradflow.errors import ConfigError, WireError

_HEAD = Struct("<QQII")  # rows, columns, rank, 0
_NAN = np.float32(np.nan)
_RAW = 0  # the rank of values as they are
# Of a payload, for which a decoder makes room by itself: so much has a square matrix of 2**17 rows at rank 1.
MOST_ELEMENTS_PER_BYTE = 2**14


@dataclass(frozen=True)
class PowerSgd(Codec):
    """Rank-r factors of tensors of two or more dimensions; vectors stay as they are.

    T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD: practical low-rank gradient compression for distributed
    optimization, NeurIPS 2019, algorithms 1 and 2. Streams of gradients work on the factors themselves, which
    add up over the ranks and are kept as the start of the next step (docs/architecture.md, "Low rank"). As a
    codec by itself it begins each time with random factors. It runs in NumPy, whatever the backend: all that
    costs time is matrix products, which are BLAS's.

    Parameters
    ----------
    error_feedback : bool
        See :class:`hvd_gradflow.codec.compiled.LossyCodec`.
    rank : int
        Columns of each factor, at least 1.
    min_compression : float
        A matrix is factorized only if that makes more than this many times fewer numbers of it, at least 1;
        others go uncompressed.
    iterations : int
        Power iterations of one :meth:`encode`, at least 1. A stream does one a step.
    seed : int
        Of the first factor; equal on all ranks.
    """

    name: ClassVar[str] = "powersgd"
    wire_id: ClassVar[int] = 11
    low_rank: ClassVar[bool] = True

    error_feedback: bool = True
    rank: int = 1
    min_compression: float = 2.0
    iterations: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.error_feedback, bool):
            raise ConfigError(
                f"codec {self.name!r}: error_feedback={self.error_feedback!r}: expected True or False"
            )
        for name, least, below in (("rank", 1, 2**16), ("iterations", 1, 2**16), ("seed", 0, 2**64)):
            value = getattr(self, name)
            try:
                number = operator.index(value)
            except TypeError:
                number = -1
            if isinstance(value, bool) or not least <= number < below:
                raise ConfigError(
                    f"codec {self.name!r}: {name}={value!r}: expected an integer from {least} to {below - 1}"
                )
            object.__setattr__(self, name, number)
        value = self.min_compression
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < math.inf:
            raise ConfigError(
                f"codec {self.name!r}: min_compression={value!r}: expected a number, at least 1"
            )

    def takes(self, shape: Sequence[int]) -> bool:
        matrix = low_rank.matrix_shape(shape)
        if matrix is None:
            return False
        return sum(matrix) * self.rank * self.min_compression < math.prod(matrix)

    def max_encoded_size(self, n: int) -> int:
        return wire.HEADER_BYTES + _HEAD.size + 4 * n

    def encode(
        self,
        x: Any,
        *,
        residual: np.ndarray | None = None,
        key: int | None = None,
        first: int = 0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        view = device.contiguous(x)
        values = np.empty(view.size, np.float32)
        if view.dtype == FLOAT32:
            values[:] = view.numpy().reshape(-1)
        else:
            device.backend().load_f32(view, values)
        if residual is not None:
            residual = flat_floats(residual, "residual", values.size)
        shape = low_rank.matrix_shape(view.shape) if self.takes(view.shape) else None
        body, finite = (
            self._raw(values, residual) if shape is None else self._factors(values, shape, residual)
        )
        flags = 0 if finite else wire.FLAG_NONFINITE
        payload = wire.seal(self.wire_id, body, count=values.size, dtype=view.dtype, flags=flags)
        if out is None:
            return payload
        out[: payload.size] = payload
        return out[: payload.size]

    def decode(self, payload: Any, out: np.ndarray | None = None) -> np.ndarray:
        header, body = wire.open_payload(payload_bytes(payload), self.wire_id)
        rows, columns, rank, data = _checked(header, body)
        if out is not None and out.size != header.count:
            raise WireError(f"payload of {header.count} elements, expected {out.size}")
        if out is None:
            out = _room(header)
        flat = flat_floats(out, "out", None)
        if rank == _RAW:
            flat[:] = data
        elif header.flags:
            flat[:] = _NAN
        else:
            matrix = flat.reshape(rows, columns)
            p, q = data[: rank * rows].reshape(rank, rows), data[rank * rows :].reshape(rank, columns)
            for begin, end, block in low_rank.product(p, q):
                matrix[begin:end] = block
        return out

    def decode_add(self, payload: Any, acc: np.ndarray) -> np.ndarray:
        acc += self.decode(payload, np.empty(acc.size, np.float32)).reshape(acc.shape)
        return acc

    def _raw(self, values: np.ndarray, residual: np.ndarray | None) -> tuple[bytes, bool]:
        """Values as they are, like ``none``: elements that are not finite keep their residual."""
        if residual is None:
            values[np.isnan(values)] = _NAN
            good = np.isfinite(values)
        else:
            total = values.copy()
            low_rank.add_clipped(total, 1.0, residual)
            good = np.isfinite(values) & np.isfinite(residual)
            with np.errstate(all="ignore"):
                values += residual
            values[np.isnan(values)] = _NAN
            values[good] = total[good]
            residual[good] = 0.0
        return _HEAD.pack(values.size, 1, _RAW, 0) + values.tobytes(), bool(good.all())

    def _factors(
        self, values: np.ndarray, shape: tuple[int, int], residual: np.ndarray | None
    ) -> tuple[bytes, bool]:
        rows, columns = shape
        head = _HEAD.pack(rows, columns, self.rank, 0)
        finite = bool(np.isfinite(values).all()) and (residual is None or bool(np.isfinite(residual).all()))
        if not finite:
            return head + np.full(self.rank * (rows + columns), _NAN).tobytes(), False
        low_rank.add_clipped(values, 1.0, residual)
        # A power of two brings the largest magnitude near one, where nothing over- or underflows.
        exponent = int(np.frexp(np.abs(values).max())[1])
        matrix = np.ldexp(values, -exponent).reshape(shape)
        q = low_rank.drawn(self.rank, columns, self.seed)
        for step in range(self.iterations):
            start = low_rank.renewed(q, self.seed, step + 1)
            p = low_rank.orthonormalized(low_rank.project(start, matrix.T))
            q = low_rank.project(p, matrix)
        # Half of its exponent to each factor, so that both are normal floats.
        p, q = np.ldexp(p, exponent // 2), np.ldexp(q, exponent - exponent // 2)
        if residual is not None:
            left, kept = values.reshape(shape), residual.reshape(shape)
            for begin, end, block in low_rank.product(p, q):
                with np.errstate(all="ignore"):
                    np.subtract(left[begin:end], block, out=kept[begin:end])
            np.clip(residual, -low_rank.FLOAT_MAX, low_rank.FLOAT_MAX, out=residual)
        return head + p.tobytes() + q.tobytes(), True


def _room(header: wire.Header) -> np.ndarray:
    """Return memory for what a payload announces, unless that is out of proportion to what has arrived."""
    most = MOST_ELEMENTS_PER_BYTE * (wire.HEADER_BYTES + header.length)
    if header.count > most:
        raise WireError(
            f"payload of {wire.HEADER_BYTES + header.length} bytes announces {header.count} elements,"
            f" expected at most {most}: if that is right, give the room for it, decode(payload, out)"
        )
    return np.empty(header.count, np.float32)


def _checked(header: wire.Header, body: np.ndarray) -> tuple[int, int, int, np.ndarray]:
    """Return rows, columns, rank and the floats of a body, of which everything was checked."""
    if body.size < _HEAD.size:
        raise WireError(f"payload with a body of {body.size} bytes, expected at least {_HEAD.size}")
    rows, columns, rank, zero = _HEAD.unpack(body[: _HEAD.size].tobytes())
    words = rows if rank == _RAW else rank * (rows + columns)
    factorized = rank != _RAW and rank < min(rows, columns)
    fits = rows * columns == header.count and body.size == _HEAD.size + 4 * words
    if zero or not fits or not (factorized or (rank == _RAW and columns == 1)):
        raise WireError(
            f"payload of {header.count} elements in {body.size} bytes says {rows} rows, {columns} columns,"
            f" rank {rank}: impossible"
        )
    data = body[_HEAD.size :].view(np.float32) if words else np.zeros(0, np.float32)
    good = np.isfinite(data)
    honest = bool(header.flags) != bool(good.all()) and (rank == _RAW or good.all() or not good.any())
    known = header.flags in (0, wire.FLAG_NONFINITE) and 1 <= header.dtype <= 4
    if not honest or not known or header.reserved or header.bits or header.block_log2:
        raise WireError(
            f"payload of codec powersgd with a correct checksum but an impossible header or body (reserved"
            f" {header.reserved}, dtype {header.dtype}, flags {header.flags:#04x}): made by another program"
        )
    return rows, columns, rank, data
