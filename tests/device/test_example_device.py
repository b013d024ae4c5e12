"""The example of docs/adding-a-device.md passes what every device must pass, and faulty ones do not."""

import ctypes
import re
import time
from pathlib import Path

import numpy as np
import pytest
from device.example_device import ExampleDevice, ThreadStream, array

from hvd_gradflow.device import Device
from hvd_gradflow.device.kernels import DEVICE_KERNELS
from hvd_gradflow.testing.device_bench import Bench
from hvd_gradflow.testing.device_conformance import DeviceConformance

ROOT = Path(__file__).resolve().parents[2]


class TestExample(DeviceConformance):
    @pytest.fixture
    def device(self):
        return ExampleDevice()

    def slow(self, device, stream):
        stream.put(time.sleep, 0.02)


class DoesNotWait(ThreadStream):
    def wait(self, event):
        pass


class ForgetsEvents(ExampleDevice):
    def stream(self):
        stream = DoesNotWait(self)
        self._streams[stream.handle] = stream
        return stream


class CopiesAtOnce(ExampleDevice):
    def _copy(self, target, source, nbytes, kind, stream):
        ctypes.memmove(target, source, nbytes)


class EncodesAtOnce(ExampleDevice):
    def _encode(self, *arguments):
        super()._encode(*arguments[:-1], stream := self.stream())
        stream.synchronize()


class DecodesUnchecked(ExampleDevice):
    def _decode(self, spec, payload, nbytes, out, n, add, status, scratch, stream):
        super()._decode(spec, payload, nbytes, out, n, add, status, scratch, stream)
        stream.put(lambda: array(out, np.float32, n).fill(0))


class WritesBehind(ExampleDevice):
    def _encode(self, spec, x, residual, n, key, first, dtype, out, size, scratch, stream):
        super()._encode(spec, x, residual, n, key, first, dtype, out, size, scratch, stream)
        stream.put(ctypes.memset, out + self.max_encoded_size(spec, n), 0, 1)


class RoundsOtherwise(ExampleDevice):
    def _encode(self, spec, x, residual, n, key, *rest):
        super()._encode(spec, x, residual, n, key ^ spec["rounding"], *rest)


@pytest.mark.parametrize(
    ("device", "test", "words"),
    [
        (ForgetsEvents, "test_a_stream_waits_for_an_event_of_another", "payload on another stream"),
        (CopiesAtOnce, "test_copies_wait_for_what_is_before_them", "copied too early"),
        (EncodesAtOnce, "test_kernels_wait_for_the_copy_before_them", "payload behind slow work"),
        (
            DecodesUnchecked,
            "test_forged_payloads_are_told_and_nothing_is_written",
            "target of a payload with",
        ),
        (WritesBehind, "test_all_lengths", "wrote behind"),
        (RoundsOtherwise, "test_keys_and_indices_of_64_bits", "payload, .*stochastic"),
    ],
)
def test_the_suite_sees_a_device_that_is_wrong(device, test, words):
    bench = Bench(device())
    with pytest.raises(AssertionError, match=words):
        getattr(TestExample(), test)(bench)
    bench.drop()


def test_the_document_shows_this_device():
    page = (ROOT / "docs" / "adding-a-device.md").read_text()
    source = (ROOT / "tests" / "device" / "example_device.py").read_text()
    assert page.endswith(f"```python\n{source}```\n"), "docs/adding-a-device.md: copy the example in again"
    methods = set(re.findall(r"`(\w+)\(", page.split("## What to keep to")[0]))
    needed = {name for name in Device.__abstractmethods__ | {f"_{k.name}" for k in DEVICE_KERNELS}}
    assert needed - methods == set()
