"""Memory, streams and events of a device, and the tables that its kernels read."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device.arrays import BFLOAT16, FLOAT16, FLOAT32
from hvd_gradflow.device.wire_deadzone import check_segments

if TYPE_CHECKING:
    from hvd_gradflow.device.device import Device

# gf_segment of cython_ext/gf_api.h: elements up to `end` have this step.
SEGMENT = np.dtype([("end", "<u8"), ("step", "<f4"), ("reserved", "<u4")])
# One tensor of a bucket: where it lies, its elements, the bucket's element at which it begins, its gf_dtype.
PIECE = np.dtype(
    [("address", "<u8"), ("elements", "<u8"), ("offset", "<u8"), ("dtype", "<u4"), ("reserved", "<u4")]
)
# What kernels convert to float32 as they read.
LOADED_DTYPES = (FLOAT32, FLOAT16, BFLOAT16)

TO_DEVICE, TO_HOST, WITHIN = "to_device", "to_host", "within"
COPIES = (TO_DEVICE, TO_HOST, WITHIN)


class Memory:
    """A piece of memory, freed when this object is dropped; keep it until the work that uses it has ended.

    Parameters
    ----------
    address : int
        As the device's kernels take it; for memory of the host also as the host does.
    nbytes : int
    keep : object
        What frees the memory when it is dropped.
    host : bool
        Whether the host may read and write it.
    """

    __slots__ = ("_keep", "address", "host", "nbytes")

    def __init__(self, address: int, nbytes: int, keep: Any, host: bool = False) -> None:
        self.address, self.nbytes, self.host, self._keep = address, nbytes, host, keep

    def numpy(self, dtype: Any = np.uint8) -> np.ndarray:
        """Return memory of the host as an array, which keeps it alive.

        Raises
        ------
        ValueError
            If the host cannot address it.
        """
        if not self.host:
            raise ValueError(
                f"{self.nbytes} bytes at {self.address:#x} are a device's: copy them to the host first"
            )
        dtype = np.dtype(dtype)
        count = self.nbytes // dtype.itemsize
        if not count:
            return np.empty(0, dtype)
        buffer = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        buffer.memory = self  # type: ignore[attr-defined]  # the array keeps the buffer, the buffer this
        return np.frombuffer(memoryview(buffer), dtype, count)


class Stream(ABC):
    """A queue of work on a device: what is put into it runs in order, and later than the call returns.

    Attributes
    ----------
    device : Device
    handle : int
        The runtime's own name for it (a ``cudaStream_t``, ...).
    """

    def __init__(self, device: Device, handle: int) -> None:
        self.device, self.handle = device, handle

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all work that was queued has ended.

        Raises
        ------
        DeviceError
            If some of it failed.
        """

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let what is queued from now on wait for an event, as recorded last; the call does not block."""


class Event(ABC):
    """A place in a stream. One that was never recorded counts as reached."""

    @abstractmethod
    def record(self, stream: Stream) -> None:
        """Take the place behind all work queued on `stream` so far, and forget any earlier one."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether that place was reached; does not block."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block until it is reached.

        Raises
        ------
        DeviceError
            If the device failed.
        """


def segment_table(ends: Any, steps: Any, n: int) -> np.ndarray:
    """Return a table of :data:`SEGMENT`: steps, each up to its end, for `n` elements.

    Raises
    ------
    ValueError
        If the ends are not ascending multiples of 32, the last one `n`; or a step is negative or not finite.
    """
    ends, steps = np.asarray(ends, np.uint64).reshape(-1), np.asarray(steps, np.float32).reshape(-1)
    check_segments(ends, steps, n)
    table = np.zeros(ends.size, SEGMENT)
    table["end"], table["step"] = ends, steps
    return table


def piece_table(pieces: list[tuple[Any, int]]) -> np.ndarray:
    """Return a table of :data:`PIECE` to copy to a device.

    Parameters
    ----------
    pieces : list of (ArrayView, int)
        Each tensor as :meth:`Device.view` shows it, and the element of the bucket at which it begins; in
        ascending order, not overlapping; float32, float16 or bfloat16. Tensors may lie at
        any multiple of their items' size.

    Raises
    ------
    TypeError
        For another dtype.
    ValueError
        If two overlap.
    """
    table = np.zeros(len(pieces), PIECE)
    end = 0
    for row, (view, offset) in zip(table, pieces):
        if view.dtype not in LOADED_DTYPES:
            raise TypeError(f"a tensor of {view.dtype_name}: expected float32, float16 or bfloat16")
        if offset < end:
            raise ValueError(f"a tensor at element {offset} overlaps the one before, which ends at {end}")
        row["address"], row["elements"] = view.address, view.size
        row["offset"], row["dtype"], end = offset, view.dtype, offset + view.size
    return table
