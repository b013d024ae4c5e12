"""``deadzone``: integers times one step for a tensor, most of them zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.compiled import LossyCodec, flat_floats, floats_of, payload_bytes
from hvd_gradflow.codec.deadzone_search import search_step
from hvd_gradflow.device import wire
from hvd_gradflow.device import wire_deadzone as layout
from hvd_gradflow.device.arrays import FLOAT32
from hvd_gradflow.device.wire_entropy import MOST_ELEMENTS_PER_BYTE
from hvd_gradflow.errors import ConfigError, WireError

DEFAULT_SIMILARITY = 0.985
DOMAINS = ("energy", "normalized")
_MOST = 4.0 * MOST_ELEMENTS_PER_BYTE  # bytes of float32 over those of a payload, of an entropy coded one, too
# option: what it must be, in words, and the open interval
_CONTROLS = {
    "similarity": ("a number between 0 and 1", 0.0, 1.0),
    # No payload of either kind is shorter: 2 bytes of 1024 zeros, and headers; docs/wire-format.md.
    "target_ratio": (f"a number above 1 and below {_MOST:g}, at which all values are zero", 1.0, _MOST),
    "step": ("a number above 0", 0.0, math.inf),
}


@dataclass(frozen=True)
class Deadzone(LossyCodec):
    """Multiples of one step for a tensor; what is nearer to zero than to a step is not sent.

    A uniform quantizer, with a zero that may take more than its share, is close to the best there is for
    values with a Laplace distribution (G. J. Sullivan: Efficient scalar quantization of exponential and
    Laplacian random variables, 1996). Blocks of 32 without codes cost next to nothing; others send where
    their codes are, and large ones in part in unary (R. F. Rice: Some practical universal noiseless coding
    techniques, 1979).

    The step follows from what is asked for, with one of `similarity`, `target_ratio` and `step`; none of them
    means ``similarity=0.985``. In a reduction the ranks agree on steps, so that their codes add up exactly;
    :meth:`encode` by itself looks for the step of this one array.

    Parameters
    ----------
    error_feedback : bool
        See :class:`hvd_gradflow.codec.compiled.LossyCodec`.
    similarity : float, optional
        Between 0 and 1, without these: 1 - similarity**2 is the part of the energy of what is to be sent, the
        gradient and what error feedback owes, that is lost (to be sent later).
    target_ratio : float, optional
        Uncompressed bytes over bytes sent, above 1 and below 2048. One that is out of reach, as for a few
        elements, leaves only the very largest values; of a stream's a warning tells after a hundred steps.
    step : float, optional
        The step, in root mean squares of the average gradient, were the nodes' gradients not correlated.
    second : {"auto", "exact", "requantize"}
        How an owner sends a sum: as it is, or encoded once more, which is shorter. "auto" is exact between
        up to four nodes, where both are as short, and requantizes between more.
    domain : {"energy", "normalized"}
        For the reduction. "energy": one step for all elements of a tensor, as suits SGD. "normalized": each
        coordinate is divided by the root of its running second moment before, and multiplied afterwards, as
        suits optimizers that do the same (Adam).
    offset : float
        What is added to a magnitude, in steps, before it is rounded down; 0 to 0.5, which rounds to nearest.
        Less makes more zeros: 0.4 has the best similarity for its bytes, but with error feedback what is held
        back comes late, and 0.5 learns better for its bytes (docs/codecs.md).
    entropy : bool
        Code the payloads once more, to 11 to 15 % fewer bytes, for thin links: at 0.3 to 0.9 GB/s of float32
        it pays where a process has less than some 60 Mbit/s. Payloads of either kind are read in any case.
    """

    similarity: float | None = None
    target_ratio: float | None = None
    step: float | None = None
    second: str = "auto"
    domain: str = "energy"
    offset: float = 0.5
    entropy: bool = False

    name: ClassVar[str] = "deadzone"
    wire_id: ClassVar[int] = wire.DEADZONE
    bits_per_element: ClassVar[float] = 1.0
    stepped: ClassVar[bool] = True
    needs_feedback: ClassVar[bool] = True
    max_elements_per_byte: ClassVar[int] = MOST_ELEMENTS_PER_BYTE

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (words, low, high) in _CONTROLS.items():
            value = getattr(self, name)
            if value is not None:
                self._set_number(name, words)
                if not low < getattr(self, name) < high:
                    raise ConfigError(f"codec {self.name!r}: {name}={value!r}: expected {words}")
        given = [name for name in _CONTROLS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"codec {self.name!r}: {' and '.join(given)} exclude each other: expected one")
        self._set_number("offset", "a number from 0 to 0.5")
        if not 0.0 <= self.offset <= 0.5:
            raise ConfigError(f"codec {self.name!r}: offset={self.offset!r}: expected a number from 0 to 0.5")
        self._check_flag("entropy")
        for name, known in (("second", layout.SECONDS), ("domain", DOMAINS)):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"codec {self.name!r}: {name}={getattr(self, name)!r}: expected one of {', '.join(known)}"
                )

    def _set_number(self, name: str, words: str) -> None:
        value = getattr(self, name)
        try:
            if isinstance(value, (bool, str)):
                raise TypeError
            object.__setattr__(self, name, float(value))
        except (TypeError, ValueError):
            raise ConfigError(f"codec {self.name!r}: {name}={value!r}: expected {words}") from None

    def replace(self, **options: Any) -> Codec:
        """Return a copy with some options changed; asking for one thing drops what was asked for before.

        Raises
        ------
        ConfigError
            For an option that does not exist, or an impossible value.
        """
        if any(options.get(name) is not None for name in _CONTROLS):
            options = {**dict.fromkeys(_CONTROLS), **options}
        return super().replace(**options)

    __call__ = replace

    @property
    def control(self) -> tuple[str, float]:
        """What is asked for: the option's name and its value."""
        for name in _CONTROLS:
            value = getattr(self, name)
            if value is not None:
                return name, value
        return "similarity", DEFAULT_SIMILARITY

    def spec(self) -> dict[str, Any]:
        name, value = self.control
        control, second = layout.CONTROLS.index(name), layout.SECONDS.index(self.second)
        domain = DOMAINS.index(self.domain)
        params = layout.pack_params(control, value, second, self.offset, domain, self.entropy)
        return {**super().spec(), "block": layout.BLOCK, "params": params}

    def expected_bytes(self, n: int) -> int:
        name, value = self.control
        if name == "target_ratio":
            bits = 32.0 / value
        else:  # of a Gaussian source: more than most gradients need
            lost = 1.0 - value**2 if name == "similarity" else min(value**2 / 12.0, 0.9)
            bits = 0.5 * math.log2(1.0 / lost)
        return min(wire.HEADER_BYTES + 12 + round(n * bits / 8), self.max_encoded_size(n))

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
        values, _ = floats_of(x)
        if self.control[0] == "step" or values.size == 0:
            return super().encode(x, residual=residual, key=key, first=first, out=out)
        if first % layout.BLOCK:
            raise ValueError(f"first={first} is not a multiple of the block ({layout.BLOCK})")
        if residual is not None:
            flat_floats(residual, "residual", values.size)
        step = search_step(self.spec(), *self.control, values, residual)
        return self.encode_stepped(x, [values.size], [step], residual=residual, out=out)

    # ---- With steps that are given ------------------------------------------------------------------------

    def encode_stepped(
        self,
        x: Any,
        ends: Any,
        steps: Any,
        *,
        residual: np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Encode an array with given steps.

        Parameters
        ----------
        x : array
            As for :meth:`encode`.
        ends : sequence of int
            Where each segment ends; ascending multiples of 32, but for the last one, the number of elements.
        steps : sequence of float
            The step of each segment: finite, not negative. With 0 all is lost (to the residual).
        residual, out
            As for :meth:`encode`.

        Returns
        -------
        ndarray of uint8
            The payload.

        Raises
        ------
        ValueError
            If ends, steps, residual or out do not fit.
        """
        values, dtype = floats_of(x)
        if residual is not None:
            residual = flat_floats(residual, "residual", values.size)
        if out is None:
            out = np.empty(self.max_encoded_size(values.size), np.uint8)
        ends, steps = _segments(ends, steps)
        size = device.backend().encode_stepped(self.spec(), ends, steps, values, residual, dtype, out)
        return out[:size]

    def add_codes(self, payload: Any, ends: Any, steps: Any, acc: np.ndarray) -> np.ndarray:
        """Add a payload's integers, not multiplied by the steps, to `acc` (contiguous float32).

        Such sums are exact, in any order, while they stay below 2**24.

        Raises
        ------
        WireError
            As :meth:`decode`; and if the payload has not exactly these steps.
        """
        ends, steps = _segments(ends, steps)
        data, flat = payload_bytes(payload), flat_floats(acc, "acc", None)
        device.backend().add_codes(self.spec(), ends, steps, data, flat)
        return acc

    def encode_codes(
        self, codes: np.ndarray, ends: Any, steps: Any, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Encode integers (as float32): a payload that decodes to them times the steps.

        Magnitudes below 2**22 stay exactly as they are; blocks with larger ones are rounded.

        Returns
        -------
        ndarray of uint8
            The payload; part of `out`, where that is given.
        """
        codes, _ = floats_of(codes)
        if out is None:
            out = np.empty(self.max_encoded_size(codes.size), np.uint8)
        ends, steps = _segments(ends, steps)
        return out[: device.backend().encode_codes(self.spec(), ends, steps, codes, FLOAT32, out)]

    def steps(self, payload: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends (uint64) and steps (float32) of a payload's segments; only its tables are checked.

        Raises
        ------
        WireError
            If it is not a payload of this codec, or its tables do not fit.
        """
        data = payload_bytes(payload)
        header = wire.Header.unpack(data)
        if header.codec != self.wire_id:
            wire.check(wire.BAD_CODEC, self.spec(), data, header.count)
        read = layout.read_segments if header.flags & wire.FLAG_ENTROPY else layout.read_tables
        tables = read(data[wire.HEADER_BYTES :], self._count(data))
        if tables is None:
            raise WireError(f"payload of {data.size} bytes whose tables of steps do not fit: damaged")
        return tables.ends, tables.steps


def _segments(ends: Any, steps: Any) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.ascontiguousarray(ends, np.uint64).reshape(-1),
        np.ascontiguousarray(steps, np.float32).reshape(-1),
    )
