"""Gradients that lie on a device, for a reducer: which stay there, and their way into buckets and back.

The text to it is "Gradients on a device" in docs/architecture.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow import events
from hvd_gradflow.device import arrays, devices, wire
from hvd_gradflow.device.arrays import HOST, ArrayView
from hvd_gradflow.device.device import Device
from hvd_gradflow.device.memory import LOADED_DTYPES, PIECE, TO_DEVICE, TO_HOST, piece_table
from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.reduce.floats import Floats
from hvd_gradflow.reduce.layout import normalizes
from hvd_gradflow.reduce.pieces import Pieces
from hvd_gradflow.reduce.results import LARGEST
from hvd_gradflow.reduce.transform import DeviceTransform

if TYPE_CHECKING:
    from hvd_gradflow.reduce.reducer import Reducer

_ROOMS = 16  # buffers for single arrays that are kept
_said: set[str] = set()


def device_of(array: Any, setting: str) -> Device | None:
    """Return the device on which an array lies, if it can be used here; None: it goes by the host.

    Parameters
    ----------
    array : array_like
    setting : str
        ``GRADFLOW_DEVICE``: ``auto``, ``host``, or the name of the only device to be used.

    Raises
    ------
    ConfigError
        No device has that name.
    UnsupportedError
        The device that was asked for by its name cannot be used here; it says why.
    """
    if setting == "host" or (type(array) is np.ndarray and setting == "auto"):
        return None
    kind, index = _where(array)
    if setting != "auto":
        only = named(setting)
        there = only.capabilities().dlpack_type
        # Arrays of the host can only be meant for a device whose memory is the host's: an emulated one.
        if there in HOST or (there, only.index) == (kind, index):
            return only
        if type(array) is not np.ndarray:
            on = f"on {only.name}:{index}" if kind == there else "elsewhere"
            say(f"GRADFLOW_DEVICE={setting}, but they lie {'on the host' if kind in HOST else on}")
        return None
    return None if kind in HOST else _find(kind, index)


def named(setting: str) -> Device:
    """Return the device that ``GRADFLOW_DEVICE`` names.

    Raises
    ------
    ConfigError, UnsupportedError
        There is none of that name, or it cannot be used here; they name the variable.
    """
    try:
        return devices.available(setting)
    except ConfigError as error:
        known = ", ".join(("auto", "host", *devices.names()))
        raise ConfigError(f"GRADFLOW_DEVICE={setting!r}: {error}; expected one of {known}") from None
    except UnsupportedError as error:
        raise UnsupportedError(f"GRADFLOW_DEVICE={setting}: {error}") from None


def check_setting(setting: str) -> None:
    """Refuse a ``GRADFLOW_DEVICE`` that cannot be, before anything is reduced; as :func:`named`."""
    if setting not in ("auto", "host"):
        named(setting)


def _find(kind: int, index: int) -> Device | None:
    reasons = []
    for name in devices.names():
        try:
            found = devices.device(f"{name}:{index}")
            if found.capabilities().dlpack_type != kind:
                continue
            reason = found.unavailable()
        except ConfigError as error:  # a plug-in's; it is no concern of the others
            reasons.append(str(error))
            continue
        if reason is None:
            return found
        reasons.append(f"{found!r} is {reason}")
    say("; ".join(reasons) or f"no device is known for arrays of DLPack's device type {kind}")
    return None


def _where(array: Any) -> tuple[int, int]:
    """DLPack's device type and id; the host's for what DLPack does not know."""
    if getattr(array, "is_cpu", False) is True:  # torch says so ten times as fast
        return HOST[0], 0
    try:
        return arrays.place_of(array)
    except TypeError:
        return HOST[0], 0


def say(reason: str) -> None:
    """Tell once that gradients on a device are not compressed there."""
    if reason not in _said:
        _said.add(reason)
        events.warn("gradients on a GPU are not encoded there: %s", reason)


class Place:
    """One device, as one reducer uses it.

    Attributes
    ----------
    device : Device
    input, output : Stream
        On which tensors enter buckets, and results leave them.
    forward, inverse : DeviceTransform
        Of what has entered, on `input`, and of what is to leave, on `output`.
    """

    def __init__(self, reducer: Reducer, device: Device) -> None:
        self.device: Any = device  # with `library`, where the engine can call its kernels
        self._reducer = reducer
        self.input, self.output = device.stream(), device.stream()
        self.forward, self.inverse = (DeviceTransform(device, s) for s in (self.input, self.output))
        self._entered = device.event()
        self._row = device.allocate(PIECE.itemsize)
        self._rooms: list[tuple[Floats, Pieces]] = []  # the one that was used last is the last
        # Of `output` and what belongs to it: any thread may wait for a handle.
        self.lock = threading.RLock()

    def takes(self, codec: Any, dtypes: Iterable[int]) -> bool:
        """Return whether tensors of these dtypes are reduced on the device, under a codec; or say why not."""
        reason = self._obstacle(codec, dtypes)
        if reason and self._reducer.node_count > 1 and self._reducer.rank == 0:
            say(reason)
        return reason is None

    def _obstacle(self, codec: Any, dtypes: Iterable[int]) -> str | None:
        reducer = self._reducer
        spec = codec.spec()
        if not self.device.api_address:
            return f"{self.device!r} has no kernels that the engine can call (docs/adding-a-device.md)"
        if reducer.node_count == 1:
            return "nothing is encoded on one node"
        if reducer.local_size > 1:
            return (
                f"{reducer.local_size} ranks share a node, and add their gradients in its memory first;"
                " GRADFLOW_RANKS_PER_NODE=1 makes each rank a node of its own"
            )
        if reducer.config.deadline_ms:
            return "what is late is owed by the host (GRADFLOW_DEADLINE_MS)"
        if reducer.config.backend != "cpu":
            return f"GRADFLOW_BACKEND={reducer.config.backend}"
        if not all(dtype in LOADED_DTYPES for dtype in dtypes):
            return "there are gradients of float64"
        if spec["id"] not in wire.CODECS:
            return f"codec {codec.name!r} is written in Python"
        if normalizes(codec):
            return "domain='normalized' divides by the second moment on the host"
        return self.device.lacks(spec)

    def room(self, elements: int) -> tuple[Floats, Pieces]:
        """Return a buffer for one array, and what fills it; :meth:`return_room` takes them back."""
        with self.lock:
            for i, (values, _) in enumerate(self._rooms):
                if values.size == elements:
                    return self._rooms.pop(i)
        return self.zeros(elements), Pieces(self, 1)

    def return_room(self, values: Floats, pieces: Pieces) -> None:
        """Keep them for the next array of that size; nothing may be under way with them."""
        pieces.given()
        with self.lock:
            self._rooms.append((values, pieces))
            del self._rooms[:-_ROOMS]

    def zeros(self, elements: int) -> Floats:
        """Return new zeros."""
        made = self.floats(elements)
        made.write(np.zeros(elements, np.float32))
        return made

    def floats(self, elements: int) -> Floats:
        """Return new elements with any values."""
        return Floats(self.device, self.device.allocate(max(4 * elements, 16)), 0, elements)

    def view(self, array: Any) -> ArrayView:
        """Return where an array lies; what enters buckets then follows what its framework has queued."""
        return self.device.view(array, self.input)

    def follow(self, array: Any) -> ArrayView:
        """Let results leave behind what an array's framework has queued, and behind what enters buckets."""
        view = self.device.view(array, self.output, writable=True)
        self._entered.record(self.input)
        self.output.wait(self._entered)
        return view

    def scatter(
        self, source: int, elements: int, tensors: list[tuple[ArrayView, int]], table: int, saturated: bool
    ) -> None:
        """Write a bucket's results over tensors that :meth:`follow` was called for, in one kernel.

        They are there on return. Call it with the lock held.

        Parameters
        ----------
        source, elements : int
            Address and size of the bucket.
        tensors : list of (ArrayView, int)
            Each with the element of the bucket where it begins.
        table : int
            Address of their table, on the device.
        saturated : bool
            Whether finite results stay finite in float16 and bfloat16; see :func:`results.saturate`.
        """
        for view, offset in tensors:
            if saturated and view.dtype in LARGEST:
                largest = LARGEST[view.dtype]
                self.device.library.saturate(source + 4 * offset, view.size, largest, self.output.handle)
        self.device.scatter(source, elements, 1.0, table, len(tensors), self.output)
        self.output.synchronize()

    def write(self, source: int, elements: int, array: Any, saturated: bool) -> None:
        """Write one result to an array, converted to its dtype; it is there on return."""
        with self.lock:
            view = self.follow(array)
            if view.size != elements:
                raise ValueError(f"out has {view.size} elements, expected {elements}")
            table = piece_table([(view, 0)])
            self.device.copy(self._row.address, table.ctypes.data, table.nbytes, TO_DEVICE)
            self.scatter(source, elements, [(view, 0)], self._row.address, saturated)

    def fetch(self, array: Any) -> ArrayView:
        """Return a copy on the host."""
        view = self.view(array)
        values = arrays.empty(view.shape, view.dtype)
        self.device.copy(values.ctypes.data, view.address, values.nbytes, TO_HOST, self.input)
        self.input.synchronize()
        return ArrayView(
            values.ctypes.data, view.size, view.dtype, view.shape, values.strides, True, False, values
        )

    def put(self, values: np.ndarray, array: Any) -> None:
        """Write values of an array's size and dtype into it; they are there on return."""
        with self.lock:
            view = self.follow(array)
            if view.size * view.itemsize != values.nbytes:
                raise ValueError(f"out has {view.size} elements of {view.dtype_name}, expected {values.size}")
            self.device.copy(view.address, values.ctypes.data, values.nbytes, TO_DEVICE, self.output)
            self.output.synchronize()
