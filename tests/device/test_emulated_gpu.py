"""The GPU kernels, emulated, pass what every device must pass; and what is particular to them."""

import numpy as np
import pytest

from hvd_gradflow import codec
from hvd_gradflow.device import _cuda, wire
from hvd_gradflow.device.registry import backend
from hvd_gradflow.testing.device_bench import finite, same, specs, values
from hvd_gradflow.testing.device_conformance import DeviceConformance
from hvd_gradflow.testing.device_kernels import _sealed, reference


class TestEmulated(DeviceConformance):
    turns = 20

    @pytest.fixture
    def device(self, emulated):
        return emulated

    def slow(self, device, stream):
        device.delay(0.02, stream)


def encoded(bench, spec, x, residual, skip):
    """Encode arrays that lie `skip` elements behind an aligned address, to `skip` bytes behind one."""
    n, device = x.size, bench.device
    most = device.max_encoded_size(spec, n)
    at, left = bench.room(4 * n + 64), bench.room(4 * n + 64)
    out, size, scratch = bench.room(most + 64), bench.room(8), bench.scratch(spec, n)
    for target, source in ((at, x), (left, residual)):
        device.copy(target + 4 * skip, source.ctypes.data, 4 * n, "to_device")
    places = (at + 4 * skip, left + 4 * skip)
    handle = bench.stream.handle
    device.library.encode(spec, 1, *places, n, 3, 0, out + skip, size, scratch, handle)
    written = int(bench.get(size, np.uint64, 1)[0])
    payload = bench.get(out, np.uint8, most + 64)[skip : skip + written]
    return payload, bench.get(left, np.float32, n + 16)[skip : skip + n], out + skip, scratch


def test_addresses_that_no_wide_access_takes(bench):
    """The kernels themselves take any address of a float32, and payloads at any byte."""
    n = 2305
    x, residual = values("laplace", n, 1), values("laplace", n, 2)
    for label, spec in specs(bench.device):
        expected, lost = reference(spec, x, residual, key=3)
        for skip in (1, 2, 3):
            payload, left, at, scratch = encoded(bench, spec, x, residual, skip)
            same(payload, expected, f"payload {skip} bytes off, {label}")
            same(left, lost, f"residual {skip} elements off, {label}")
            out, status = bench.room(4 * n + 64), bench.room(4)
            handle = bench.stream.handle
            bench.device.library.decode(
                spec, at, payload.size, out + 4 * skip, n, False, status, scratch, handle
            )
            assert bench.get(status, np.int32, 1)[0] == wire.OK
            decoded = np.zeros(n, np.float32)
            backend("numpy").decode(spec, expected, decoded)
            same(bench.get(out, np.float32, n + 16)[skip : skip + n], decoded, f"decoded, {label}")
        bench.drop()


@pytest.mark.parametrize(("block", "n"), [(512, 2000), (4096, 4001)])
def test_blocks_that_several_warps_share(bench, block, n):
    """For ThreadSanitizer; one block of threads, since the emulator gives all blocks the same memory."""
    spec = codec.get("int8")(block=block).spec()
    x, residual = values("laplace", n, 4), values("laplace", n, 5)
    expected, lost = reference(spec, x, residual, key=3)
    payload, left, _, _ = encoded(bench, spec, x, residual, 0)
    same(payload, expected, "payload")
    same(left, lost, "residual")


def test_a_lone_spike_and_sums_that_overflow(bench):
    """For ThreadSanitizer, too: in one block of threads."""
    for label, spec in specs(bench.device):
        x, residual = values("laplace", 2000, 4) * np.float32(1e-6), np.zeros(2000, np.float32)
        x[777], x[1500:1532], residual[1500:1532] = 3e38, 3e38, 3e38
        x[1600], residual[1600] = -3.4e38, -3.4e38
        expected, lost = reference(spec, x, residual, key=1)
        payload, left = bench.encode(spec, x, residual, key=1)
        same(payload, expected, f"payload, {label}")
        same(left, lost, f"residual, {label}")
        bench.drop()


def test_sums_with_nan_and_infinity_are_those_of_the_host(bench):
    """Whoever adds, the bits of what is not a number are the same."""
    acc = np.array([np.nan, -np.nan, np.inf, -np.inf, 1.0, 0x7F800001, -np.inf, 0.0] * 40, np.float32)
    acc[5::8] = np.array(0x7F800001, np.uint32).view(np.float32)
    for name in ("none", "bf16"):
        spec = codec.get(name).spec()
        x = np.roll(acc, 3)
        payload, _ = reference(spec, x)
        expected = acc.copy()
        backend("cpu").decode_add(spec, payload, expected)
        status, found = bench.decode(spec, payload, acc, add=True)
        assert status == wire.OK
        same(found, expected, f"sums under {name}")


def test_bodies_that_no_encoder_writes(bench):
    """Each fault in a body gets the status that the reference gives it, wherever it is."""
    numpy, n = backend("numpy"), 3000
    for label, spec in specs(bench.device):
        x = values("laplace", n, 12)
        x[::7] = 0  # so that blocks of sign1 have masks
        good, _ = reference(spec, x)
        rng, seen = np.random.default_rng(5), set()
        for _ in range(25):
            bad = good.copy()
            at = int(rng.integers(wire.HEADER_BYTES, wire.HEADER_BYTES + min(200, good.size - 32)))
            bad[at] = rng.choice([0, 0x80, 0x88, 0xFF, 0xAA, int(rng.integers(256))])
            bad = _sealed(bad, 24, 0)
            expected = numpy.status(spec, bad, n)
            status, _ = bench.decode(spec, bad, np.zeros(n, np.float32))
            assert status == expected, f"{label}, byte {at} = {bad[at]}: status {status}, expected {expected}"
            seen.add(status)
            bench.drop()
        assert seen == {wire.OK} if spec["id"] in (wire.NONE, wire.BF16) else len(seen) > 1, label


@pytest.mark.parametrize("segments", [1, 130, 700])
def test_many_segments(bench, segments):
    """More than one launch takes, and more than one turn of the scan over them."""
    spec = codec.get("deadzone", entropy=False).spec()
    n = 32 * segments + 1000
    ends = np.append(np.arange(32, 32 * segments, 32), n).astype(np.uint64)
    steps = (ends, np.linspace(0.0, 0.7, ends.size).astype(np.float32))
    x, residual = values("laplace", n, 1), finite(values("not finite", n, 2))
    expected, lost = reference(spec, x, residual, steps=steps)
    payload, left = bench.encode(spec, x, residual, steps=steps)
    same(payload, expected, "payload")
    same(left, lost, "residual")
    acc, target = np.ones(n, np.float32), np.ones(n, np.float32)
    backend("numpy").add_codes(spec, *steps, expected, target)
    status, found = bench.decode(spec, payload, acc, steps=steps)
    assert status == wire.OK
    same(found, target, "sum of codes")


@pytest.mark.parametrize("name", ["deadzone", "int8", "int2", "log4"])
def test_entropy_coded_payloads_are_left_to_the_host(bench, name):
    device = bench.device
    spec, coded = (codec.get(name, entropy=entropy).spec() for entropy in (False, True))
    assert device.library.spec_fault(spec) is None
    assert "runs on the CPU" in device.library.spec_fault(coded)
    x = values("laplace", 5000, 1)
    payload, _ = reference(coded, x)
    assert wire.Header.unpack(payload).flags & wire.FLAG_ENTROPY
    target = np.ones(5000, np.float32)
    status, found = bench.decode(spec, payload, target)
    assert status == _cuda.WIRE_ENTROPY
    same(found, target, "target")


def test_energies_of_more_chunks_than_lanes(bench):
    n = 70_001
    x, residual = values("laplace", n, 1), values("not finite", n, 2)
    expected = np.array([backend("cpu").energy(x), backend("cpu").energy(residual)])
    same(
        expected,
        np.array([backend("numpy").energy(x), backend("numpy").energy(residual)]),
        "energies on the CPU",
    )
    out, scratch = bench.room(16), bench.room(bench.device.statistics_scratch_bytes(n))
    bench.device.statistics(bench.put(x), bench.put(residual), n, out, scratch, bench.stream)
    same(bench.get(out, np.float64, 2), expected, "energies")


def test_where_an_address_lies(emulated):
    memory, host = emulated.allocate(100), emulated.allocate_host(100)
    assert emulated.library.device_of(memory.address + 50) == 0
    assert emulated.library.device_of(host.address) == -1
