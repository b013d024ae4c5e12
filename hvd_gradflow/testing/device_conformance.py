"""What every device must pass; docs/adding-a-device.md tells how a plug-in runs it.

from hvd_gradflow.testing.device_conformance import DeviceConformance

class TestMine(DeviceConformance):
    name = "mine"
"""

from __future__ import annotations

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
        nbytes = 256 * 2**20
        if not hasattr(device, "_conformance_memory"):
            device._conformance_memory = device.allocate(nbytes)  # type: ignore[attr-defined]
        address = device._conformance_memory.address  # type: ignore[attr-defined]
        for _ in range(1000):
            device.copy(address, address + nbytes // 2, nbytes // 2, WITHIN, stream)
