"""``wavelet``: ``deadzone`` of the wavelet coefficients of a gradient, where that takes fewer bytes."""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.codec import wire
from hvd_gradflow.codec.compiled import flat_floats, floats_of, payload_bytes
from hvd_gradflow.codec.deadzone import Deadzone
from hvd_gradflow.device import wire as device_wire
from hvd_gradflow.device.wavelet import FILTERS, MAX_LEVELS, lowest
from hvd_gradflow.errors import ConfigError, WireError

AXES = ("memory", "matrix")
WHERE = ("auto", "always")
_FRONT = struct.Struct("<BBHI")  # filter, levels, 0, columns
BEGIN = 0.98  # of what a tensor costs untransformed, below which a stream begins to transform it
LOSS = 0.4  # 5 % less lost energy counts as 2 % fewer bytes
_BLOCK_LOG2 = 5
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Wavelet(Deadzone):
    """Integers times one step, as ``deadzone``, of a tensor under a periodised orthogonal wavelet transform.

    Where neighbours in memory are alike, as in convolutions, the transform puts much of the energy into few
    coefficients, the lowest band (S. Mallat: A theory for multiresolution signal decomposition, 1989). One
    step for all bands gives each the bits that its energy asks for, none to those below the noise (reverse
    water-filling; Cover and Thomas, Elements of Information Theory, 2nd edition, theorem 10.3.3). The
    transform is orthogonal, so that sums, errors and similarities are those of the gradient.

    In a reduction the lowest band of a large tensor leaves first, and the details let other gradients' lowest
    bands pass (docs/architecture.md, "Two parts").

    Parameters
    ----------
    filter : {"haar", "db2", "db4", "sym4"}
        PyWavelets' names.
    levels : int
        1 to 8; each halves the lowest band.
    axes : {"memory", "matrix"}
        One dimension, along memory; or two: rows of the first dimension, columns of all others.
    where : {"auto", "always"}
        "auto": a tensor is transformed if that makes its payloads smaller. The ranks measure it on their
        gradients and decide together, now and then; with staleness and for single arrays it means never.
    details_deadline_ms : float
        Above 0: where a tensor's details have not had their turn after so long, its lowest band must do, and
        the details are owed, as what error feedback keeps. 0: they are waited for.
    error_feedback, similarity, target_ratio, step, second, offset, entropy
        See :class:`hvd_gradflow.codec.deadzone.Deadzone`, whose `domain` is "energy" here.
    """

    filter: str = "haar"
    levels: int = 3
    axes: str = "memory"
    where: str = "auto"
    details_deadline_ms: float = 0.0

    name: ClassVar[str] = "wavelet"
    wire_id: ClassVar[int] = device_wire.WAVELET
    transforms: ClassVar[bool] = True
    exact_zeros: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("filter", tuple(FILTERS)), ("axes", AXES), ("where", WHERE)):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"codec {self.name!r}: {name}={getattr(self, name)!r}: expected one of {', '.join(known)}"
                )
        try:
            object.__setattr__(self, "levels", operator.index(self.levels))
        except TypeError:
            raise ConfigError(f"codec {self.name!r}: levels={self.levels!r}: expected an integer") from None
        if not 1 <= self.levels <= MAX_LEVELS:
            raise ConfigError(f"codec {self.name!r}: levels={self.levels}: expected 1 to {MAX_LEVELS}")
        words = "a number of milliseconds, 0 or more"
        self._set_number("details_deadline_ms", words)
        if not 0 <= self.details_deadline_ms < 1e9:
            raise ConfigError(
                f"codec {self.name!r}: details_deadline_ms={self.details_deadline_ms}: expected {words}"
            )
        if self.details_deadline_ms and not self.error_feedback:
            raise ConfigError(
                f"codec {self.name!r}: details_deadline_ms={self.details_deadline_ms} with"
                " error_feedback=False: what comes too late would be lost; expected error feedback"
            )
        if self.domain != "energy":
            raise ConfigError(
                f"codec {self.name!r}: domain={self.domain!r}: expected 'energy'; deadzone takes others"
            )

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "id": device_wire.DEADZONE}

    @cached_property
    def carrier(self) -> Deadzone:
        """The codec of the coefficients."""
        base = {name: getattr(self, name) for name in Deadzone.options()}
        return Deadzone(**base)

    def columns(self, shape: tuple[int, ...]) -> int:
        """Return the length of a row where a tensor of this shape is transformed as a matrix, else 0."""
        if self.axes == "memory" or len(shape) < 2 or not shape[0]:
            return 0
        return int(np.prod(shape[1:], dtype=np.int64))

    def forward(self, x: np.ndarray, columns: int, out: np.ndarray, finite: bool = True) -> np.ndarray:
        """Write the coefficients of `x` to `out`, which is returned; see `wavelet.extents`."""
        device.backend().wavelet(x, out, self.filter, self.levels, columns, False, finite)
        return out

    def inverse(self, c: np.ndarray, columns: int, out: np.ndarray, finite: bool = True) -> np.ndarray:
        """Write what has the coefficients `c` to `out`, which is returned."""
        device.backend().wavelet(c, out, self.filter, self.levels, columns, True, finite)
        return out

    def lowest(self, n: int, columns: int) -> int:
        """Return how many of n coefficients are the lowest band: the first ones."""
        return lowest(n, self.levels, columns)

    def relative_cost(self, x: np.ndarray, c: np.ndarray) -> float | None:
        """Return what the coefficients `c` of `x` cost over `x` itself, in bytes and in what is lost.

        None where `x` loses nothing. Below `BEGIN` a stream begins to transform a tensor.
        """
        costs = []
        for values in (x, c):
            payload = self.carrier.encode(values)
            lost = device.backend().energy(values - self.carrier.decode(payload))
            costs.append(payload.size * lost**LOSS)
        return costs[1] / costs[0] if costs[0] else None

    def prepared(self, x: np.ndarray) -> tuple[np.ndarray, Deadzone]:
        """Return what a stream would encode in place of `x` (one dimension, finite), and by what."""
        c = self.forward(x, 0, np.empty_like(x))
        if self.where == "auto":
            cost = self.relative_cost(x, c)
            c = x if cost is None or cost >= BEGIN else c
        return c, self.carrier

    # ---- One array by itself ------------------------------------------------------------------------------

    def encode(
        self,
        x: Any,
        *,
        residual: np.ndarray | None = None,
        key: int | None = None,
        first: int = 0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        values, dtype = floats_of(x)
        if residual is not None:
            residual = flat_floats(residual, "residual", values.size)
        if out is None:
            out = np.empty(self.max_encoded_size(values.size), np.uint8)
        elif out.size < self.max_encoded_size(values.size):
            raise ValueError(
                f"out has {out.size} bytes, expected at least {self.max_encoded_size(values.size)}"
            )
        with np.errstate(all="ignore"):
            v = values if residual is None else values + residual
        if not np.isfinite(values).all() or (residual is not None and not np.isfinite(residual).all()):
            inner = self.carrier.encode(values, residual=residual, first=first)
            return self._sealed(inner, 0, 0, dtype, out)
        v = np.clip(v, -_LARGEST, _LARGEST)
        columns = self.columns(np.shape(x))
        coefficients = self.forward(v, columns, np.empty_like(v))
        inner, levels = self.carrier.encode(coefficients, first=first), self.levels
        if self.where == "auto":
            plain = self.carrier.encode(v, first=first)
            if not self._better(v, coefficients, plain, inner):
                inner, levels, columns = plain, 0, 0
        payload = self._sealed(inner, levels, columns, dtype, out)
        if residual is not None:
            with np.errstate(all="ignore"):
                np.clip(v - self.decode(payload), -_LARGEST, _LARGEST, out=residual)
        return payload

    def _better(self, v: np.ndarray, c: np.ndarray, plain: np.ndarray, transformed: np.ndarray) -> bool:
        """Whether the transformed payload is the better one: smaller, or with a given size closer."""
        if self.control[0] == "similarity":
            return transformed.size < plain.size
        energy = device.backend().energy
        lost = [energy(a - self.carrier.decode(p)) for a, p in ((v, plain), (c, transformed))]
        return lost[1] <= lost[0] and transformed.size <= 1.02 * plain.size

    def _sealed(
        self, inner: np.ndarray, levels: int, columns: int, dtype: int, out: np.ndarray
    ) -> np.ndarray:
        body = _FRONT.pack(list(FILTERS).index(self.filter), levels, 0, columns) + inner.tobytes()
        header = wire.Header.unpack(inner)
        flags = header.flags & wire.FLAG_NONFINITE
        payload = wire.seal(
            self.wire_id, body, count=header.count, dtype=dtype, flags=flags, block_log2=_BLOCK_LOG2
        )
        out[: payload.size] = payload
        return out[: payload.size]

    def decode(self, payload: Any, out: np.ndarray | None = None) -> np.ndarray:
        header, inner, name, levels, columns = self._opened(payload)
        if out is not None and flat_floats(out, "out", None).size != header.count:
            raise WireError(f"payload of {header.count} elements, expected {out.size}")
        coefficients = self.carrier.decode(inner)
        if levels:
            made = np.empty_like(coefficients)
            device.backend().wavelet(coefficients, made, name, levels, columns, True, True)
            coefficients = made
        if out is None:
            return coefficients
        out.reshape(-1)[:] = coefficients
        return out

    def decode_add(self, payload: Any, acc: np.ndarray) -> np.ndarray:
        flat = flat_floats(acc, "acc", None)
        values = self.decode(payload, out=np.empty_like(flat))
        with np.errstate(all="ignore"):
            flat += values
        return acc

    def _opened(self, payload: Any) -> tuple[wire.Header, np.ndarray, str, int, int]:
        """The header, the payload within, and how its coefficients were made: filter, levels, columns."""
        header, body = wire.open_payload(payload_bytes(payload), self.wire_id)
        if body.size < _FRONT.size:
            raise WireError(f"payload with a body of {body.size} bytes, expected at least {_FRONT.size}")
        number, levels, zero, columns = _FRONT.unpack(body[: _FRONT.size].tobytes())
        if (
            number >= len(FILTERS)
            or levels > MAX_LEVELS
            or zero
            or (columns and (not levels or header.count % columns))
            or header.bits
            or header.block_log2 != _BLOCK_LOG2
            or header.reserved
            or not 1 <= header.dtype <= 4
            or header.flags & ~wire.FLAG_NONFINITE
        ):
            raise WireError(
                "payload of codec wavelet with an impossible header or front: made by another program"
            )
        inner = body[_FRONT.size :]
        within = wire.Header.unpack(inner)
        flagged = within.flags & wire.FLAG_NONFINITE
        if within.count != header.count or flagged != header.flags or (flagged and levels):
            raise WireError(
                "payload of codec wavelet that does not fit the one within: made by another program"
            )
        return header, inner, list(FILTERS)[number], levels, columns

    def max_encoded_size(self, n: int) -> int:
        return wire.HEADER_BYTES + _FRONT.size + super().max_encoded_size(n)

    def steps(self, payload: Any) -> tuple[np.ndarray, np.ndarray]:
        return self.carrier.steps(self._opened(payload)[1])
