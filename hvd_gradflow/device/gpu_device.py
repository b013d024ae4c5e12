"""GPUs as devices: NVIDIA's through CUDA, AMD's through HIP, each by a library that `make build` makes."""

from __future__ import annotations

import weakref
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hvd_gradflow.device.device import Capabilities, Device
from hvd_gradflow.device.memory import COPIES, Event, Memory, Stream
from hvd_gradflow.errors import DeviceError, UnsupportedError

CODECS = frozenset({"none", "fp16", "bf16", "int8", "int4", "int2", "log4", "deadzone", "sign1"})
# gf_gpu_copy of cuda/gpu_api.h.
_KINDS = {kind: number for number, kind in enumerate(COPIES, start=1)}


class GpuStream(Stream):
    """A stream of the runtime; one of its own is destroyed with this object."""

    device: GpuDevice

    def __init__(self, device: GpuDevice, handle: int, own: bool) -> None:
        super().__init__(device, handle)
        if own:
            weakref.finalize(self, device.library.stream_destroy, handle).atexit = False

    def synchronize(self) -> None:
        self.device.library.stream_synchronize(self.handle)

    def wait(self, event: Event) -> None:
        self.device.library.stream_wait(self.handle, event.handle)  # type: ignore[attr-defined]


class GpuEvent(Event):
    """An event of the runtime, destroyed with this object."""

    def __init__(self, device: GpuDevice) -> None:
        self._library = device.library
        self.handle: int = self._library.event_create()
        weakref.finalize(self, self._library.event_destroy, self.handle).atexit = False

    def record(self, stream: Stream) -> None:
        self._library.event_record(self.handle, stream.handle)

    def done(self) -> bool:
        return self._library.event_done(self.handle)

    def synchronize(self) -> None:
        self._library.event_synchronize(self.handle)

    def seconds_until(self, later: GpuEvent) -> float:
        """Return the seconds on the device between this event and a later one, both reached."""
        return self._library.event_seconds(self.handle, later.handle)


class _Allocation:
    """Frees memory when it is dropped."""

    def __init__(self, library: Any, address: int, host: bool) -> None:
        weakref.finalize(self, library.release, address, host).atexit = False


class GpuDevice(Device):
    """What CUDA and HIP have in common; a subclass says how it is built and what to do without.

    Parameters
    ----------
    index : int
        As the runtime counts, so after ``CUDA_VISIBLE_DEVICES`` or ``HIP_VISIBLE_DEVICES``.
    """

    build_option = ""  # the variable that `make build` reads
    compiler = ""
    driver = ""
    architectures = ""
    dlpack_type = 0
    _used = False

    def library_path(self) -> Path:
        """Return where the library is, if it was built."""
        return Path(__file__).parent / f"libgradflow_{self.name}.so"

    @cached_property
    def library(self) -> Any:
        """The loaded library.

        Raises
        ------
        UnsupportedError
            If it was not built, or cannot be loaded.
        """
        path = self.library_path()
        if not path.exists():
            raise UnsupportedError(
                f"not built: run `{self.build_option}=1 make build`, which needs {self.compiler} and says so"
                " where that is missing"
            )
        try:
            from hvd_gradflow.device import _cuda
        except ImportError as error:
            raise UnsupportedError(f"not built ({error}): run `make build`") from error
        return _cuda.Library(str(path), self.index)

    def unavailable(self) -> str | None:
        if self._used:
            return None
        try:
            count, trouble = self.library.device_count()
        except UnsupportedError as error:
            return str(error)
        if trouble:
            return f"built, no device: {trouble}; {self.driver}"
        if count == 0:
            return f"built, no device: the runtime sees none; {self.driver}"
        if self.index >= count:
            return f"there are {count} devices, so the last is {self.name}:{count - 1}"
        try:
            trouble = self.library.device_trouble()
        except DeviceError as error:
            trouble = str(error)
        if trouble:
            return f"built for other devices than this one: {trouble}; {self.architectures}"
        self._used = True  # asked once: what is here stays here
        return None

    def describe(self) -> str:
        return self._usable().device_name()

    def _usable(self) -> Any:
        reason = self.unavailable()
        if reason:
            raise UnsupportedError(f"device {self!r} cannot be used here: {reason}")
        return self.library

    @cached_property
    def api_address(self) -> int:  # type: ignore[override]  # mypy: the base's could be written
        return self._usable().api_address()

    @cached_property
    def _capabilities(self) -> Capabilities:
        return Capabilities(CODECS, self.dlpack_type, alignment=16)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    # ---- memory and streams ------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        address = self._usable().allocate(nbytes)
        return Memory(address, nbytes, _Allocation(self.library, address, False))

    def allocate_host(self, nbytes: int) -> Memory:
        address = self._usable().allocate(nbytes, True)
        return Memory(address, nbytes, _Allocation(self.library, address, True), host=True)

    def stream(self) -> GpuStream:
        return GpuStream(self, self._usable().stream_create(), own=True)

    def wrap_stream(self, handle: int) -> GpuStream:
        self._usable()
        return GpuStream(self, handle, own=False)

    def event(self) -> GpuEvent:
        self._usable()
        return GpuEvent(self)

    @cached_property
    def _copies(self) -> GpuStream:
        """For copies without a stream: they wait for nothing else."""
        return self.stream()

    def _copy(self, target: int, source: int, nbytes: int, kind: str, stream: Stream | None) -> None:
        on = self._copies if stream is None else stream
        self.library.copy(target, source, nbytes, _KINDS[kind], on.handle, stream is None)

    def delay(self, seconds: float, stream: Stream) -> None:
        """Keep a stream busy for a while; for tests of what must wait."""
        self.library.delay(seconds, stream.handle)

    # ---- kernels -----------------------------------------------------------------------------------

    def scratch_bytes(self, spec: dict[str, Any], n: int) -> int:
        return self._usable().scratch_bytes(spec, n)

    def statistics_scratch_bytes(self, n: int) -> int:
        return self._usable().statistics_scratch_bytes(n)

    def _encode(self, spec, x, residual, n, key, first, dtype, out, size, scratch, stream) -> None:
        self.library.encode(spec, dtype, x, residual, n, key, first, out, size, scratch, stream.handle)

    def _decode(self, spec, payload, nbytes, out, n, add, status, scratch, stream) -> None:
        self.library.decode(spec, payload, nbytes, out, n, add, status, scratch, stream.handle)

    def _encode_stepped(self, spec, segments, x, residual, n, dtype, out, size, scratch, stream) -> None:
        table = segments.view(np.uint8)
        self.library.encode_stepped(spec, table, dtype, x, residual, n, out, size, scratch, stream.handle)

    def _add_codes(self, spec, segments, payload, nbytes, acc, n, status, scratch, stream) -> None:
        table = segments.view(np.uint8)
        self.library.add_codes(spec, table, payload, nbytes, acc, n, status, scratch, stream.handle)

    def _encode_codes(self, spec, segments, codes, n, dtype, out, size, scratch, stream) -> None:
        table = segments.view(np.uint8)
        self.library.encode_codes(spec, table, dtype, codes, n, out, size, scratch, stream.handle)

    def _statistics(self, x, residual, n, out, scratch, stream) -> None:
        self.library.statistics(x, residual, n, out, scratch, stream.handle)

    def _gather(self, pieces, count, target, n, finite, stream) -> None:
        self.library.gather(pieces, count, target, n, finite, stream.handle)

    def _scatter(self, source, n, scale, pieces, count, stream) -> None:
        self.library.scatter(source, n, scale, pieces, count, stream.handle)


class CudaDevice(GpuDevice):
    """An NVIDIA GPU."""

    name = "cuda"
    build_option = "GRADFLOW_WITH_CUDA"
    compiler = "the CUDA toolkit (nvcc)"
    architectures = "compute capability 8.0 (A100) is the least"
    driver = "no driver, or an old one? See nvidia-smi, CUDA_VISIBLE_DEVICES, and what a container is given"
    dlpack_type = 2


class HipDevice(GpuDevice):
    """An AMD GPU."""

    name = "hip"
    build_option = "GRADFLOW_WITH_HIP"
    compiler = "hipcc"
    architectures = "scripts/gpu_build.py lists the architectures it is built for"
    driver = "no driver? See rocminfo, HIP_VISIBLE_DEVICES, and whether there are /dev/kfd and /dev/dri"
    dlpack_type = 10
