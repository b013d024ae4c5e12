"""Wavelet transforms in place, of gradients and residuals, on the host or on a device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from hvd_gradflow.codec.wavelet import Wavelet
from hvd_gradflow.device.memory import TO_DEVICE, WITHIN, Memory, Stream
from hvd_gradflow.device.wavelet import TAPS, extents


class HostTransform:
    """Transforms of arrays in the host's memory, with room for a copy of the largest."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.float32)

    def run(self, codec: Wavelet, columns: int, values: np.ndarray, inverse: bool, finite: bool) -> None:
        """Put coefficients in the place of values, or the reverse.

        Parameters
        ----------
        codec : Wavelet
        columns : int
            Of a matrix; 0: one dimension.
        values : ndarray of float32
        inverse : bool
        finite : bool
            Whether all values are: then so is what becomes of them.
        """
        if self._room.size < values.size:
            self._room = np.empty(values.size, np.float32)
        copy = self._room[: values.size]
        copy[:] = values
        (codec.inverse if inverse else codec.forward)(copy, columns, values, finite)


class DeviceTransform:
    """The same on a device, behind what is on a stream; the host waits for nothing.

    Parameters
    ----------
    device : Device
        With kernels that the engine can call, too.
    stream : Stream
    """

    def __init__(self, device: Any, stream: Stream) -> None:
        self.stream = stream
        self._device = device
        self._room: Memory | None = None
        self._no: Memory | None = None
        self._lock = threading.Lock()  # a copy and the transform of it belong together

    def run(
        self,
        codec: Wavelet,
        columns: int,
        address: int,
        elements: int,
        inverse: bool,
        finite: bool | int = True,
    ) -> None:
        """Put coefficients in the place of float32 values, or the reverse.

        Parameters
        ----------
        codec, columns, inverse
            As of :meth:`HostTransform.run`.
        address, elements : int
            Where the values are.
        finite : bool or int
            As there, or the address of an int32 on the device, which is 0 where some value is not finite.
        """
        rows, width = extents(elements, codec.levels, columns)
        if not width:
            return
        library, copy = self._device.library, (4 * elements + 15) // 16 * 16
        with self._lock:
            needed = copy + library.wavelet_scratch_bytes(elements)
            if self._room is None or self._room.nbytes < needed:
                self._room = self._device.allocate(needed)
            room = self._room.address
            self._device.copy(room, address, 4 * elements, WITHIN, self.stream)
            shape = elements, rows, width, columns
            places = room, address, self._flag(finite), room + copy, self.stream.handle
            library.wavelet(TAPS[codec.filter], codec.levels, *shape, inverse, *places)

    def _flag(self, finite: bool | int) -> int:
        """Return the address that the kernels are told; null: all values are finite."""
        if finite is True:
            return 0
        if finite is not False:
            return finite
        if self._no is None:
            self._no, no = self._device.allocate(16), np.zeros(4, np.int32)
            self._device.copy(self._no.address, no.ctypes.data, no.nbytes, TO_DEVICE)
        return self._no.address
