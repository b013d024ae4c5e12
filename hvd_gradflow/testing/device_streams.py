"""Memory, copies, streams and events of a device; above all, that work waits for what it needs."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_gradflow.device import wire
from hvd_gradflow.device.arrays import FLOAT32, ArrayView
from hvd_gradflow.device.device import Device
from hvd_gradflow.device.memory import TO_DEVICE, TO_HOST, WITHIN, Stream, piece_table
from hvd_gradflow.device.registry import backend
from hvd_gradflow.errors import DeviceError
from hvd_gradflow.testing.device_bench import Bench, LateBench, same, specs, values
from hvd_gradflow.testing.device_kernels import reference


class StreamTests:
    """What is queued runs in order, behind whatever was queued before."""

    turns: int

    def slow(self, device: Device, stream: Stream) -> None:
        """Queue work that takes long enough for what follows to overtake it, if it could."""
        raise TypeError(f"{type(self).__name__} does not define slow()")

    def first_spec(self, bench: Bench):
        """Any codec that loses bits."""
        return specs(bench.device)[-1][1]

    def test_kernels_wait_for_the_copy_before_them(self, bench):
        """The input arrives late, and the result leaves, while the host only waits for an event."""
        device, stream, n = bench.device, bench.stream, 2000
        for label, spec in specs(device):
            x, most = values("laplace", n, 1), device.max_encoded_size(spec, n)
            source, target = bench.pinned(x), bench.pinned(np.zeros(most + 8, np.uint8))
            at, out, size = bench.put(np.zeros(n, np.float32)), bench.room(most), bench.room(8)
            scratch, reached = bench.scratch(spec, n), device.event()
            self.slow(device, stream)
            device.copy(at, source.address, 4 * n, TO_DEVICE, stream)
            device.encode(spec, at, 0, n, 5, 0, 1, out, size, scratch, stream)
            device.copy(target.address, out, most, TO_HOST, stream)
            device.copy(target.address + most, size, 8, TO_HOST, stream)
            reached.record(stream)
            reached.synchronize()
            assert reached.done()
            both = target.numpy()
            written = int(np.frombuffer(both[most : most + 8].tobytes(), np.uint64)[0])
            same(both[:written], reference(spec, x, key=5)[0], f"payload behind slow work, {label}")
            bench.drop()

    def test_every_kernel_waits_for_what_it_reads(self, bench):
        """Inputs arrive late, one kernel after the other; one that runs at once reads what was before."""
        late, numpy, n = LateBench(bench.device, self.slow), backend("numpy"), 1000
        x, residual, acc = values("laplace", n, 1), values("laplace", n, 2), values("laplace", n, 3)
        steps = np.array([n], np.uint64), np.array([0.5], np.float32)
        for label, spec in {spec["id"]: (label, spec) for label, spec in specs(bench.device)}.values():
            expected, left = reference(spec, x, residual)
            payload, found = late.encode(spec, x, residual)
            same(payload, expected, f"payload of a late input, {label}")
            assert found is not None  # there was a residual
            same(found, left, f"residual that was late, {label}")
            target = acc.copy()
            numpy.decode_add(spec, expected, target)
            status, found = late.decode(spec, expected, acc, add=True)
            assert status == wire.OK, f"decode read a late payload too early: status {status}, {label}"
            same(found, target, f"added to a target that was late, {label}")
            if spec["id"] == wire.DEADZONE:
                self._late_steps(late, spec, steps, x, acc, label)
            late.drop()
        out, scratch = late.room(16), late.room(bench.device.statistics_scratch_bytes(n))
        bench.device.statistics(late.put(x), late.put(residual), n, out, scratch, late.stream)
        same(late.get(out, np.float64, 2), np.array([numpy.energy(x), numpy.energy(residual)]), "energies")
        tensor, flag = late.room(4 * n), late.room(4)
        view = ArrayView(tensor, n, FLOAT32, (n,), (4,), True, False, None, repr(bench.device))
        bench.device.scatter(late.put(x), n, 1.0, late.put(piece_table([(view, 0)])), 1, late.stream)
        same(late.get(tensor, np.float32, n), x, "scattered from a bucket that was late")
        view.address, bucket = late.put(x), late.room(4 * n)
        bench.device.gather(late.put(piece_table([(view, 0)])), 1, bucket, n, flag, late.stream)
        same(late.get(bucket, np.float32, n), x, "gathered from a tensor that was late")
        late.drop()

    @staticmethod
    def _late_steps(late: LateBench, spec, steps, x, acc, label) -> None:
        numpy = backend("numpy")
        expected, _ = reference(spec, x, steps=steps)
        same(late.encode(spec, x, steps=steps)[0], expected, f"payload with steps of a late input, {label}")
        codes, out = np.rint(acc), np.zeros(numpy.max_encoded_size(spec, x.size), np.uint8)
        size = numpy.encode_codes(spec, *steps, codes, 1, out)
        same(late.encode_codes(spec, steps, codes), out[:size], f"payload of codes that were late, {label}")
        numpy.add_codes(spec, *steps, expected, codes)
        status, found = late.decode(spec, expected, np.rint(acc), steps=steps)
        assert status == wire.OK, f"add_codes read a late payload too early: status {status}, {label}"
        same(found, codes, f"codes added to a target that was late, {label}")

    def test_calls_return_before_slow_work_ends(self, bench):
        device, stream, reached = bench.device, bench.stream, bench.device.event()
        if not device.capabilities().asynchronous:
            pytest.skip(f"{device!r} says that it is synchronous")
        stream.synchronize()
        self.slow(device, stream)
        reached.record(stream)
        assert not reached.done(), "slow() ended at once, or the device is not asynchronous as it says"
        reached.synchronize()
        assert reached.done()

    def test_arguments_may_change_after_the_call(self, bench):
        device, n = bench.device, 1000
        x = values("laplace", n, 2)
        for label, spec in specs(device):
            if "deadzone" not in label:
                continue
            ends, steps = np.array([512, n], np.uint64), np.array([0.5, 0.25], np.float32)
            expected, _ = reference(spec, x, steps=(ends.copy(), steps.copy()))
            most = device.max_encoded_size(spec, n)
            at, out, size, scratch = bench.put(x), bench.room(most), bench.room(8), bench.scratch(spec, n)
            self.slow(device, bench.stream)
            device.encode_stepped(spec, ends, steps, at, 0, n, 1, out, size, scratch, bench.stream)
            ends[:], steps[:] = 0, 7
            written = int(bench.get(size, np.uint64, 1)[0])
            same(bench.get(out, np.uint8, most)[:written], expected, f"payload, {label}")
            bench.drop()

    def test_a_stream_waits_for_an_event_of_another(self, bench):
        """Only the second stream is waited for; without the event it would encode zeros."""
        device, spec, n = bench.device, self.first_spec(bench), 3000
        x, other = values("laplace", n, 3), bench.another_stream()
        source, at = bench.pinned(x), bench.put(np.zeros(n, np.float32))
        most = device.max_encoded_size(spec, n)
        out, size, scratch = bench.room(most), bench.room(8), bench.scratch(spec, n)
        reached = device.event()
        self.slow(device, other)
        device.copy(at, source.address, 4 * n, TO_DEVICE, other)
        reached.record(other)
        bench.stream.wait(reached)
        reached.record(other)  # a later place: what waits already is not concerned
        device.encode(spec, at, 0, n, 0, 0, 1, out, size, scratch, bench.stream)
        written = int(bench.get(size, np.uint64, 1)[0])
        same(bench.get(out, np.uint8, most)[:written], reference(spec, x)[0], "payload on another stream")
        other.synchronize()

    def test_streams_do_not_wait_for_each_other(self, bench):
        device, other, reached = bench.device, bench.another_stream(), bench.device.event()
        if not device.capabilities().asynchronous:
            pytest.skip(f"{device!r} says that it is synchronous")
        self.slow(device, other)
        reached.record(other)
        bench.stream.synchronize()
        assert not reached.done(), "an idle stream waited for a busy one"
        other.synchronize()
        assert reached.done()

    def test_a_wrapped_stream_is_the_same_queue(self, bench):
        device, spec, n = bench.device, self.first_spec(bench), 2000
        x, wrapped = values("laplace", n, 4), device.wrap_stream(bench.stream.handle)
        assert wrapped.handle == bench.stream.handle
        source, at = bench.pinned(x), bench.put(np.zeros(n, np.float32))
        most = device.max_encoded_size(spec, n)
        out, size, scratch = bench.room(most), bench.room(8), bench.scratch(spec, n)
        self.slow(device, bench.stream)
        device.copy(at, source.address, 4 * n, TO_DEVICE, bench.stream)
        device.encode(spec, at, 0, n, 0, 0, 1, out, size, scratch, wrapped)
        wrapped.synchronize()
        written = int(bench.get(size, np.uint64, 1)[0])
        same(bench.get(out, np.uint8, most)[:written], reference(spec, x)[0], "payload on a wrapped stream")

    def test_events(self, bench):
        device, event = bench.device, bench.device.event()
        assert event.done(), "an event that was never recorded counts as reached"
        event.synchronize()
        bench.stream.wait(event)
        self.slow(device, bench.stream)
        event.record(bench.stream)
        event.synchronize()
        assert event.done()
        bench.stream.synchronize()

    def test_two_streams_at_once(self, bench):
        device, spec, n = bench.device, self.first_spec(bench), 20000
        most, made = device.max_encoded_size(spec, n), []
        for seed in range(4):
            x, stream = values("laplace", n, seed), bench.another_stream()
            at, out, size, scratch = bench.put(x), bench.room(most), bench.room(8), bench.scratch(spec, n)
            for _ in range(3):
                device.encode(spec, at, 0, n, 0, 0, 1, out, size, scratch, stream)
            made.append((x, out, size, stream))
        for x, out, size, stream in made:
            stream.synchronize()
            written = int(bench.get(size, np.uint64, 1)[0])
            same(bench.get(out, np.uint8, most)[:written], reference(spec, x)[0], "payload")

    def test_copies(self, bench):
        device, x = bench.device, np.arange(1000, dtype=np.float32)
        a, b, back = bench.room(4000), bench.room(4000), np.zeros(1000, np.float32)
        device.copy(a, x.ctypes.data, 4000, TO_DEVICE)
        device.copy(b, a, 4000, WITHIN)
        device.copy(back.ctypes.data, b, 4000, TO_HOST)
        same(back, x, "synchronous copies")
        source, target = bench.pinned(x[::-1].copy()), bench.pinned(np.zeros_like(x))
        self.slow(device, bench.stream)
        device.copy(a, source.address, 4000, TO_DEVICE, bench.stream)
        device.copy(b, a, 4000, WITHIN, bench.stream)
        device.copy(target.address, b, 4000, TO_HOST, bench.stream)
        bench.stream.synchronize()
        same(target.numpy(np.float32)[:1000], x[::-1], "asynchronous copies")
        device.copy(a, 0, 0, TO_DEVICE)  # nothing, from nowhere

    def test_copies_wait_for_what_is_before_them(self, bench):
        """There and back again: a copy that runs at once copies what is not there yet."""
        device, stream = bench.device, bench.stream
        x = values("laplace", 1000, 5)
        source, target = bench.pinned(x), bench.pinned(np.zeros_like(x))
        at, bucket, flag = bench.put(np.zeros_like(x)), bench.room(4000), bench.room(4)
        view = ArrayView(at, 1000, FLOAT32, (1000,), (4,), True, False, None, repr(device))
        table = bench.put(piece_table([(view, 0)]))
        self.slow(device, stream)
        device.copy(at, source.address, 4000, TO_DEVICE, stream)
        device.gather(table, 1, bucket, 1000, flag, stream)
        device.copy(target.address, bucket, 4000, TO_HOST, stream)
        stream.synchronize()
        same(target.numpy(np.float32)[:1000], x, "copied too early, or not in order")

    def test_memory(self, bench):
        device, alignment = bench.device, bench.device.capabilities().alignment
        for nbytes in (0, 1, 31, 4097):
            memory, host = device.allocate(nbytes), device.allocate_host(nbytes)
            assert memory.address % alignment == 0
            assert memory.nbytes == host.nbytes == nbytes
            host.numpy()[:] = 7
            assert (host.numpy() == 7).all()
        memory = device.allocate(100)
        if not memory.host:
            with pytest.raises(ValueError, match="copy them to the host first"):
                memory.numpy()
        with pytest.raises(DeviceError):
            device.allocate(2**60)
        assert device.allocate(100).nbytes == 100, "no memory after a refusal"

    def test_memory_comes_back(self, bench):
        """Far more in turn than there is at once."""
        for _ in range(self.turns):
            bench.device.allocate(256 * 2**20)

    def test_what_a_device_says(self, bench):
        device = bench.device
        assert device.unavailable() is None
        assert "\n" not in device.describe() and device.describe()
        assert device.name.isidentifier()
        assert device.capabilities() == device.capabilities()
        assert device.capabilities().codecs
        for _, spec in specs(device):
            assert device.scratch_bytes(spec, 0) >= 0
            assert device.scratch_bytes(spec, 10**6) >= device.scratch_bytes(spec, 1000)
