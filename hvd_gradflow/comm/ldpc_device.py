"""The erasure code on a GPU: schedules that the host made, run on symbols in the device's memory."""

from __future__ import annotations

import numpy as np

from hvd_gradflow.comm.ldpc_schedule import Schedule, XorLists
from hvd_gradflow.device.gpu_device import GpuDevice
from hvd_gradflow.device.memory import TO_DEVICE, Memory, Stream

_PITCH = 16  # slots begin at multiples of it, whatever a symbol's bytes


class _Tables:
    """One :class:`XorLists` in the device's memory."""

    def __init__(self, lists: XorLists, device: GpuDevice) -> None:
        self.count = int(lists.targets.size)
        self._memory: list[Memory] = []
        self.targets, self.begins, self.entries = (
            self._put(device, array) for array in (lists.targets, lists.begins, lists.entries)
        )

    def _put(self, device: GpuDevice, array: np.ndarray) -> int:
        array = np.ascontiguousarray(array, np.uint32)
        memory = device.allocate(max(array.nbytes, 4))
        if array.nbytes:
            device.copy(memory.address, array.ctypes.data, array.nbytes, TO_DEVICE)
        self._memory.append(memory)
        return memory.address


class DeviceSchedule:
    """A schedule in a device's memory. Keep it until what was queued has ended.

    Parameters
    ----------
    schedule : Schedule
        :meth:`LdpcStaircase.encode_schedule` (good for any block of that code) or
        :meth:`LdpcStaircase.decode_schedule` (good for what arrived of one block).
    device : GpuDevice

    Raises
    ------
    DeviceError
        If its memory is short.
    """

    def __init__(self, schedule: Schedule, device: GpuDevice) -> None:
        self.device, self.slots = device, schedule.slots
        self._steps = [_Tables(t, device) for t in (schedule.syndromes, schedule.program, schedule.outputs)]

    @staticmethod
    def _pitch(symbol_bytes: int) -> int:
        return -(-symbol_bytes // _PITCH) * _PITCH

    def scratch_bytes(self, symbol_bytes: int) -> int:
        """Return the bytes of scratch that :meth:`run` needs."""
        return self.slots * self._pitch(symbol_bytes)

    def run(self, symbols: int, out: int, symbol_bytes: int, scratch: int, stream: Stream) -> None:
        """Queue the schedule on a stream; allocates nothing, and returns at once.

        Parameters
        ----------
        symbols : int
            Address of the rows that are read, `symbol_bytes` each, one after another: the source
            for an encoder, all k + m symbols for a decoder.
        out : int
            Address of the rows that are written, as many bytes each: parity for an encoder; for a
            decoder the missing ones of the source (`symbols` itself will do).
        scratch : int
            Aligned to 16 bytes.

        Raises
        ------
        ValueError
            For a size that cannot be.
        DeviceError
            If the device failed.
        """
        if symbol_bytes < 1:
            raise ValueError(f"symbols of {symbol_bytes} bytes, expected at least 1")
        pitch = self._pitch(symbol_bytes)
        ways = (
            (symbols, symbol_bytes, scratch, pitch, False),
            (scratch, pitch, scratch, pitch, True),
            (scratch, pitch, out, symbol_bytes, False),
        )
        for step, (source, source_pitch, target, target_pitch, ordered) in zip(self._steps, ways):
            self.device.library.xor_lists(
                *(step.targets, step.begins, step.entries, step.count),
                *(source, source_pitch, target, target_pitch, symbol_bytes, ordered, stream.handle),
            )
