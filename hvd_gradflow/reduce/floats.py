"""float32 arrays in the memory of a device."""

from __future__ import annotations

import numpy as np

from hvd_gradflow.device.device import Device
from hvd_gradflow.device.memory import TO_DEVICE, TO_HOST, Memory


class Floats:
    """float32 in a device's memory, or a part of such an array, which keeps all of it.

    Parameters
    ----------
    device : Device
    memory : Memory
    begin, end : int
        Elements.
    """

    def __init__(self, device: Device, memory: Memory, begin: int, end: int) -> None:
        self.device, self._memory, self._begin = device, memory, begin
        self.size = end - begin

    @property
    def address(self) -> int:
        """Where the first element lies."""
        return self._memory.address + 4 * self._begin

    def __getitem__(self, part: slice) -> Floats:
        begin, end, _ = part.indices(self.size)
        return Floats(self.device, self._memory, self._begin + begin, self._begin + end)

    def numpy(self) -> np.ndarray:
        """Return a copy on the host. Nothing may be under way with these elements."""
        values = np.empty(self.size, np.float32)
        self.device.copy(values.ctypes.data, self.address, values.nbytes, TO_HOST)
        return values

    def write(self, values: np.ndarray) -> None:
        """Replace all elements. Nothing may be under way with them."""
        values = np.ascontiguousarray(values, np.float32)
        self.device.copy(self.address, values.ctypes.data, values.nbytes, TO_DEVICE)
