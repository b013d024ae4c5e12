"""What every device must pass; docs/adding-a-device.md tells how a plug-in runs it.

from hvd_gradflow.testing.device_conformance import DeviceConformance

class TestMine(DeviceConformance):
    name = "mine"
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hvd_gradflow.device import devices
from hvd_gradflow.device.device import Device
from hvd_gradflow.device.memory import WITHIN, Stream
from hvd_gradflow.testing.device_bench import Bench
from hvd_gradflow.testing.device_kernels import KernelTests
from hvd_gradflow.testing.device_refusals import RefusalTests
from hvd_gradflow.testing.device_streams import StreamTests


class DeviceConformance(KernelTests, StreamTests, RefusalTests):
    """The contract of hvd_gradflow.device.device, as tests; subclass it for a device of your own.

    Attributes
    ----------
    name : str
        Under which the device is registered. It is skipped, with the reason, where it is not available.
    long : int
        Elements of the one long array.
    turns : int
        Pieces of 256 MiB that are allocated and dropped in turn; more than fit at once.
    """

    name = ""
    long = 300_001
    turns = 2000

    @pytest.fixture
    def device(self) -> Device:
        """Return the device to be tested."""
        if not self.name:
            pytest.fail(f"{type(self).__name__}.name is to be the name of a device: {devices.names()}")
        found = devices.device(self.name)
        reason = found.unavailable()
        if reason:
            pytest.skip(f"{found!r}: {reason}")
        return found

    @pytest.fixture
    def bench(self, device: Device) -> Iterator[Bench]:
        """The device with a stream."""
        bench = Bench(device)
        yield bench
        bench.drop()

    def slow(self, device: Device, stream: Stream) -> None:
        """Queue work that takes a tenth of a second or so; by default, copies within the device.

        A device with a kernel that only waits overrides this.
        """
        half = 32 * 2**20
        if not hasattr(device, "_conformance_copies"):
            memory = device.allocate(2 * half)
            begin = time.perf_counter()
            device.copy(memory.address, memory.address + half, half, WITHIN)
            device.copy(memory.address, memory.address + half, half, WITHIN)
            seconds = (time.perf_counter() - begin) / 2
            count = min(max(round(0.1 / seconds), 1), 2000)
            device._conformance_copies = memory, count  # type: ignore[attr-defined]
        memory, count = device._conformance_copies  # type: ignore[attr-defined]
        for _ in range(count):
            device.copy(memory.address, memory.address + half, half, WITHIN, stream)
