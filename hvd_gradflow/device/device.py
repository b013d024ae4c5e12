"""What a device is: memory, streams, and kernels that work on that memory (docs/adding-a-device.md)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from hvd_gradflow.device import arrays
from hvd_gradflow.device import device_checks as check
from hvd_gradflow.device.device_kernels import DeviceKernels
from hvd_gradflow.device.memory import COPIES, Event, Memory, Stream


@dataclass(frozen=True)
class Capabilities:
    """What a device can do.

    Attributes
    ----------
    codecs : frozenset of str
        Names of the codecs that its kernels encode and decode.
    dlpack_type : int
        Of the arrays in its memory (``DLDeviceType`` of dlpack.h: 2 CUDA, 10 ROCm, 12 for others).
    asynchronous : bool
        Whether work goes on after a call has returned.
    unified : bool
        Whether the host can read and write its memory.
    alignment : int
        Bytes; addresses that kernels take are multiples of it, but for tensors in a table of pieces.
    mpi_aware : bool
        Whether this process' MPI takes addresses of its memory.
    entropy : bool
        Whether its kernels know entropy coded payloads.
    """

    codecs: frozenset[str]
    dlpack_type: int
    asynchronous: bool = True
    unified: bool = False
    alignment: int = 16
    mpi_aware: bool = False
    entropy: bool = False


class Device(DeviceKernels):
    """Base of the devices.

    Parameters
    ----------
    index : int
        Which of the devices of this kind, as DLPack counts them. Making the object must not fail, nor start a
        runtime: :meth:`unavailable` says what is wrong.
    """

    name = ""
    # Address of its gf_gpu_api (cuda/gpu_api.h), for the engine's thread; 0: it has none.
    api_address: int = 0

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"{self.name}:{self.index}"

    # ---- what it is --------------------------------------------------------------------------------

    @abstractmethod
    def unavailable(self) -> str | None:
        """Return why it cannot be used here, with cause and fix; None if it can."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line about it (model, memory, driver); only asked where it is available."""

    # ---- memory and streams ------------------------------------------------------------------------

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Return memory of the device, aligned as its kernels need it.

        Raises
        ------
        DeviceError
            If there is not enough.
        """

    @abstractmethod
    def allocate_host(self, nbytes: int) -> Memory:
        """Return memory of the host, from and to which copies are asynchronous (pinned).

        Raises
        ------
        DeviceError
            If there is not enough.
        """

    @abstractmethod
    def stream(self) -> Stream:
        """Return a new stream, which runs beside all others."""

    @abstractmethod
    def wrap_stream(self, handle: int) -> Stream:
        """Return a stream that somebody else made (torch's current one) and goes on owning."""

    @abstractmethod
    def event(self) -> Event:
        """Return a new event."""

    def copy(self, target: int, source: int, nbytes: int, kind: str, stream: Stream | None = None) -> None:
        """Copy bytes.

        Parameters
        ----------
        target, source : int
            Addresses.
        nbytes : int
        kind : str
            ``to_device``, ``to_host`` or ``within`` the device.
        stream : Stream, optional
            Without one, the bytes are there when this returns; whatever streams have under way is not waited
            for. With one it is asynchronous, if the host's memory comes from :meth:`allocate_host`.

        Raises
        ------
        ValueError
            For another kind, a size below zero, or a null address.
        """
        if kind not in COPIES:
            raise ValueError(f"copy of kind {kind!r}: expected one of {', '.join(COPIES)}")
        check.count("nbytes", nbytes)
        check.stream(self, stream, optional=True)
        if nbytes:
            check.address(self, "target", target, 1)
            check.address(self, "source", source, 1)
            self._copy(target, source, nbytes, kind, stream)

    @abstractmethod
    def _copy(self, target: int, source: int, nbytes: int, kind: str, stream: Stream | None) -> None:
        """See :meth:`copy`; there is something to copy."""

    def dlpack_stream(self, stream: Stream) -> int:
        """Return a stream as ``__dlpack__(stream=...)`` wants it; CUDA's default stream is called 1 there."""
        return stream.handle or 1

    def view(self, array: Any, stream: Stream | None, writable: bool = False) -> arrays.ArrayView:
        """Look at an array in this device's memory without copying it.

        Parameters
        ----------
        array : object with DLPack
            float32, float64, float16 or bfloat16; contiguous.
        stream : Stream or None
            On which it will be used: the array's framework makes that stream wait for what it has queued to
            write the array. None, if the caller sees to that.
        writable : bool
            Whether it will be written.

        Returns
        -------
        ArrayView
            Whose address is the device's.

        Raises
        ------
        TypeError
            If it is no such array, or lies elsewhere.
        ValueError
            If it has gaps, another order or alignment, or is read-only and to be written.
        """
        check.stream(self, stream, optional=True)
        handle = -1 if stream is None else self.dlpack_stream(stream)
        view = arrays.view_on(array, self.capabilities().dlpack_type, self.index, repr(self), handle)
        check.view(self, array, view, writable)
        return view
