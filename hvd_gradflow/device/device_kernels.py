"""The kernels of a device: what is called checks its arguments, what a subclass defines need not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device import arrays, wire
from hvd_gradflow.device import device_checks as check
from hvd_gradflow.device.memory import Stream
from hvd_gradflow.device.wire_entropy import entropy_of

if TYPE_CHECKING:
    from hvd_gradflow.device.device import Capabilities


class DeviceKernels(ABC):
    """The half of a :class:`~hvd_gradflow.device.device.Device` that computes.

    A kernel's public method checks the arguments and hands them to the method of the same name with an
    underscore; their list, with the meaning of each argument, is ``DEVICE_KERNELS`` of
    :mod:`hvd_gradflow.device.kernels`. All are asynchronous on `stream`.

    Raises
    ------
    ConfigError
        For a specification that no codec has.
    UnsupportedError
        For one that this device has no kernels for.
    TypeError
        For a dtype that kernels do not read, or what is no address or no stream.
    ValueError
        For a null or misaligned address, an impossible number, or the stream of another device.
    """

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what it can do; always the same."""

    def lacks(self, spec: dict[str, Any]) -> str | None:
        """Return why no kernel takes this specification of a codec, or None."""
        can = self.capabilities()
        codec = wire.CODECS.get(spec["id"], (f"codecs in Python (wire id {spec['id']})",))[0]
        if codec not in can.codecs:
            return f"no kernels for {codec}; it has those of {', '.join(sorted(can.codecs))}"
        if entropy_of(spec["params"]) and not can.entropy:
            return "no kernels for entropy coding: use entropy=False"
        return None

    def max_encoded_size(self, spec: dict[str, Any], n: int) -> int:
        """Return the upper bound of a payload's bytes, header included: as the backends'."""
        wire.check_spec(spec)
        return wire.HEADER_BYTES + wire.body_bytes(spec, n)

    @abstractmethod
    def scratch_bytes(self, spec: dict[str, Any], n: int) -> int:
        """Return the bytes of device memory that any kernel of this codec needs for itself."""

    def statistics_scratch_bytes(self, n: int) -> int:
        """Return the bytes of device memory that :meth:`statistics` needs for itself."""
        return 0

    def encode(
        self,
        spec: dict[str, Any],
        x: int,
        residual: int,
        n: int,
        key: int,
        first: int,
        dtype: int,
        out: int,
        size: int,
        scratch: int,
        stream: Stream,
    ) -> None:
        check.codec(self, spec, n, stream, scratch)
        check.first(spec, first)
        check.encoding(self, x, residual, n, dtype, out, size)
        self._encode(spec, x, residual, n, key, first, dtype, out, size, scratch, stream)

    def decode(
        self,
        spec: dict[str, Any],
        payload: int,
        nbytes: int,
        out: int,
        n: int,
        add: bool,
        status: int,
        scratch: int,
        stream: Stream,
    ) -> None:
        check.codec(self, spec, n, stream, scratch)
        check.decoding(self, payload, nbytes, out, n, status)
        self._decode(spec, payload, nbytes, out, n, add, status, scratch, stream)

    def encode_stepped(
        self,
        spec: dict[str, Any],
        ends: np.ndarray,
        steps: np.ndarray,
        x: int,
        residual: int,
        n: int,
        dtype: int,
        out: int,
        size: int,
        scratch: int,
        stream: Stream,
    ) -> None:
        table = check.stepped(self, spec, ends, steps, n, stream, scratch)
        check.encoding(self, x, residual, n, dtype, out, size)
        self._encode_stepped(spec, table, x, residual, n, dtype, out, size, scratch, stream)

    def add_codes(
        self,
        spec: dict[str, Any],
        ends: np.ndarray,
        steps: np.ndarray,
        payload: int,
        nbytes: int,
        acc: int,
        n: int,
        status: int,
        scratch: int,
        stream: Stream,
    ) -> None:
        table = check.stepped(self, spec, ends, steps, n, stream, scratch)
        check.decoding(self, payload, nbytes, acc, n, status)
        self._add_codes(spec, table, payload, nbytes, acc, n, status, scratch, stream)

    def encode_codes(
        self,
        spec: dict[str, Any],
        ends: np.ndarray,
        steps: np.ndarray,
        codes: int,
        n: int,
        dtype: int,
        out: int,
        size: int,
        scratch: int,
        stream: Stream,
    ) -> None:
        table = check.stepped(self, spec, ends, steps, n, stream, scratch)
        check.encoding(self, codes, 0, n, arrays.FLOAT32, out, size)
        check.header_dtype(dtype)
        self._encode_codes(spec, table, codes, n, dtype, out, size, scratch, stream)

    def statistics(self, x: int, residual: int, n: int, out: int, scratch: int, stream: Stream) -> None:
        check.stream(self, stream)
        check.count("n", n)
        check.aligned(self, "x", x, n)
        check.aligned(self, "residual", residual, 0)
        check.aligned(self, "out", out, 2, 8)
        check.aligned(self, "scratch", scratch, self.statistics_scratch_bytes(n))
        self._statistics(x, residual, n, out, scratch, stream)

    def gather(self, pieces: int, count: int, target: int, n: int, finite: int, stream: Stream) -> None:
        check.pieces(self, pieces, count, "target", target, n, stream)
        check.aligned(self, "finite", finite, 1, 4)
        self._gather(pieces, count, target, n, finite, stream)

    def scatter(self, source: int, n: int, scale: float, pieces: int, count: int, stream: Stream) -> None:
        check.pieces(self, pieces, count, "source", source, n, stream)
        self._scatter(source, n, scale, pieces, count, stream)

    # ---- what a subclass defines for them: arguments are checked, see DEVICE_KERNELS ----------------

    @abstractmethod
    def _encode(self, spec, x, residual, n, key, first, dtype, out, size, scratch, stream) -> None: ...

    @abstractmethod
    def _decode(self, spec, payload, nbytes, out, n, add, status, scratch, stream) -> None: ...

    @abstractmethod
    def _statistics(self, x, residual, n, out, scratch, stream) -> None: ...

    @abstractmethod
    def _gather(self, pieces, count, target, n, finite, stream) -> None: ...

    @abstractmethod
    def _scatter(self, source, n, scale, pieces, count, stream) -> None: ...

    # These are only asked of devices that have deadzone. segments: a host's array of memory.SEGMENT, to be
    # read before they return.
    def _encode_stepped(self, spec, segments, x, residual, n, dtype, out, size, scratch, stream) -> None:
        raise TypeError(f"{type(self).__name__} has deadzone but does not define _encode_stepped()")

    def _add_codes(self, spec, segments, payload, nbytes, acc, n, status, scratch, stream) -> None:
        raise TypeError(f"{type(self).__name__} has deadzone but does not define _add_codes()")

    def _encode_codes(self, spec, segments, codes, n, dtype, out, size, scratch, stream) -> None:
        raise TypeError(f"{type(self).__name__} has deadzone but does not define _encode_codes()")
