"""The kernels of a device give the reference's bytes."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_gradflow.device import arrays, wire
from hvd_gradflow.device.memory import piece_table
from hvd_gradflow.device.registry import backend
from hvd_gradflow.testing.device_bench import (
    BLOCKS,
    KINDS,
    Bench,
    as_dtype,
    as_float32,
    finite,
    same,
    specs,
    values,
)

LENGTHS = (0, 1, 2, 7, 31, 32, 33, 255, 256, 257, 1023, 1025, 2305, 5000)
STEPS = (0.0, 1e-45, 1.5e-38, 1e-12, 0.01, 0.3, 20.0, 1e19, 1e38, 3.4028235e38)


def reference(spec, x, residual=None, key=0, first=0, dtype=arrays.FLOAT32, steps=None, numpy=None):
    """The payload and the residual as NumPy makes them."""
    numpy = numpy or backend("numpy")
    x = np.ascontiguousarray(as_float32(x))
    out = np.zeros(numpy.max_encoded_size(spec, x.size), np.uint8)
    left = None if residual is None else residual.copy()
    with np.errstate(all="ignore"):
        if steps is None:
            size = numpy.encode(spec, x, left, key, first, dtype, out)
        else:
            size = numpy.encode_stepped(spec, *steps, x, left, dtype, out)
    return out[:size], left


class KernelTests:
    """Payloads, residuals and sums against the NumPy backend, bit for bit."""

    long: int

    def round_trip(
        self, bench: Bench, spec, x, residual, key=0, first=0, dtype=arrays.FLOAT32, words="", by="numpy"
    ):
        """Encode, decode, decode-and-add, and compare each with the reference."""
        numpy, n = backend(by), x.size
        for what, left in (("payload", None), ("payload with residual", residual)):
            expected, expected_left = reference(spec, x, left, key, first, dtype, numpy=numpy)
            payload, new = bench.encode(spec, x, left, key, first, dtype)
            same(payload, expected, f"{what}, {words}")
            if new is not None:
                same(new, expected_left, f"residual, {words}")
        acc = finite(residual[::-1].copy())
        for add in (False, True):
            target = acc.copy()
            with np.errstate(all="ignore"):
                (numpy.decode_add if add else numpy.decode)(spec, expected, target)
            status, found = bench.decode(spec, payload, acc, add)
            assert status == wire.OK, f"status {status} of a good payload, {words}"
            same(found, target, f"{'added' if add else 'decoded'}, {words}")
        assert n == found.size

    def test_all_lengths(self, bench):
        for label, spec in specs(bench.device):
            for n in LENGTHS:
                x, residual = values("laplace", n, n), values("laplace", n, n + 1)
                self.round_trip(bench, spec, x, residual, key=n, words=f"{label}, {n} elements")
                bench.drop()

    def test_all_blocks(self, bench):
        for label, spec in specs(bench.device, BLOCKS):
            block = spec["block"]
            for n in (block + 1, 2 * block) if block > 1 else ():
                x, residual = values("laplace", n, 1), values("sparse", n, 2)
                first = 5 * block
                self.round_trip(bench, spec, x, residual, 7, first, words=f"{label}, {n} elements")
                bench.drop()

    @pytest.mark.parametrize("kind", KINDS)
    def test_all_kinds_of_values(self, bench, kind):
        for label, spec in specs(bench.device, (32, 512)):
            x, residual = values(kind, 1800, 3), finite(values(kind, 1800, 4))
            self.round_trip(bench, spec, x, residual, 11, words=f"{label}, {kind} values")
            bench.drop()

    @pytest.mark.parametrize("dtype", [arrays.FLOAT16, arrays.BFLOAT16])
    def test_16_bit_elements_are_converted_on_load(self, bench, dtype):
        for label, spec in specs(bench.device):
            for kind in ("laplace", "tiny", "not finite"):
                x = as_dtype(values(kind, 1333, 5), dtype)
                residual = finite(values("laplace", 1333, 6))
                words = f"{label}, {kind} {arrays.DTYPE_NAMES[dtype]}"
                self.round_trip(bench, spec, x, residual, 3, dtype=dtype, words=words)
                bench.drop()

    def test_keys_and_indices_of_64_bits(self, bench):
        for label, spec in specs(bench.device):
            if not spec["rounding"]:
                continue
            x, residual = values("laplace", 700, 8), values("laplace", 700, 9)
            for key, first in ((2**64 - 1, 2**40), (2**63 + 5, 2**32 - 256), (1, 0)):
                words = f"{label}, key {key}, first {first}"
                self.round_trip(bench, spec, x, residual, key, first, words=words)
            bench.drop()

    def test_a_long_array(self, bench):
        n = self.long  # too long for NumPy; the compiled kernels give the same bytes
        for label, spec in specs(bench.device):
            x, residual = values("laplace", n, 10), values("laplace", n, 11)
            self.round_trip(bench, spec, x, residual, 5, words=f"{label}, {n} elements", by="cpu")
            bench.drop()

    def test_forged_payloads_are_told_and_nothing_is_written(self, bench):
        numpy, n = backend("numpy"), 500
        for label, spec in specs(bench.device):
            good, _ = reference(spec, values("laplace", n, 12))
            target = values("laplace", n, 13)
            for what, bad in forgeries(good).items():
                expected = numpy.status(spec, bad, n)
                for add in (False, True):
                    status, found = bench.decode(spec, bad, target, add)
                    assert status == expected, f"{label}, {what}: status {status}, expected {expected}"
                    if status != wire.OK:
                        same(found, target, f"target of a payload with {what}, {label}")
            status, _ = bench.decode(spec, good, target[:-1])
            assert status == wire.BAD_COUNT, f"{label}: another count than expected: status {status}"
            bench.drop()

    def test_given_steps(self, bench):
        numpy = backend("numpy")
        stepped = [(label, spec) for label, spec in specs(bench.device) if spec["id"] == wire.DEADZONE]
        for label, spec in stepped:
            for seed, kind in enumerate(KINDS):
                rng = np.random.default_rng(seed)
                n = (0, 1, 33, 1024, 1025, 2500, 3000, 4097)[seed]
                inner = sorted({32 * int(b) for b in rng.integers(1, 1 + n // 32, 4)}) if n > 64 else []
                ends = np.array([e for e in inner if e < n] + [n] * (n > 0), np.uint64)
                steps = (ends, rng.choice(np.array(STEPS, np.float32), ends.size))
                x, residual = values(kind, n, seed), finite(values(kind, n, seed + 50))
                words = f"{label}, {kind}, {n} elements"
                expected, expected_left = reference(spec, x, residual, steps=steps)
                payload, left = bench.encode(spec, x, residual, steps=steps)
                same(payload, expected, f"payload, {words}")
                same(left, expected_left, f"residual, {words}")
                codes = np.zeros(n, np.float32)
                status, found = bench.decode(spec, payload, codes, steps=steps)
                assert status == wire.OK, f"status {status}, {words}"
                with np.errstate(all="ignore"):
                    numpy.add_codes(spec, *steps, expected, codes)
                same(found, codes, f"codes, {words}")
                out = np.zeros(numpy.max_encoded_size(spec, n), np.uint8)
                size = numpy.encode_codes(spec, *steps, codes, 1, out)
                same(bench.encode_codes(spec, steps, codes), out[:size], f"encoded codes, {words}")
                if n:
                    others = (steps[0], np.full_like(steps[1], 0.5))
                    status, found = bench.decode(spec, payload, codes, steps=others)
                    assert status == wire.BAD_CODEC, f"other steps: status {status}, {words}"
                    same(found, codes, f"target of a payload with other steps, {words}")
                bench.drop()

    def test_statistics(self, bench):
        numpy, device = backend("numpy"), bench.device
        for n in (0, 1, 7, 8, 9, 1000, 4099):
            for kind in ("laplace", "tiny", "huge", "not finite"):
                x, residual = values(kind, n, n), finite(values(kind, n, n + 1))
                at, left, out = bench.put(x), bench.put(residual), bench.room(16)
                scratch = bench.room(device.statistics_scratch_bytes(n))
                for r, energy in ((left, numpy.energy(residual)), (0, 0.0)):
                    device.statistics(at, r, n, out, scratch, bench.stream)
                    expected = np.array([numpy.energy(x), energy])
                    same(bench.get(out, np.float64, 2), expected, f"energies of {n} {kind} elements")
                bench.drop()

    @pytest.mark.parametrize("good", [True, False])
    def test_many_tensors_in_and_out_of_a_bucket(self, bench, good):
        numpy, device, rng = backend("numpy"), bench.device, np.random.default_rng(1)
        kinds = (arrays.FLOAT32, arrays.FLOAT16, arrays.BFLOAT16)
        shared, pieces, tensors, n = 64, [], [], 0
        for i in range(300):
            count = int(rng.integers(1, 90)) if i % 50 else 3000
            x = as_dtype(values("laplace" if good or i != 200 else "any bits", count, i), kinds[i % 3])
            # At any multiple of their items' size, as slices of larger tensors are.
            skip = shared + x.itemsize * int(rng.integers(0, 8))
            address = bench.room(
                skip + x.nbytes, np.concatenate([np.zeros(skip, np.uint8), x.view(np.uint8)])
            )
            view = arrays.ArrayView(
                address + skip, count, kinds[i % 3], (count,), (), True, False, None, repr(device)
            )
            pieces.append((view, n))
            tensors.append((x, skip, address))
            n = -(-(n + count) // 32) * 32
        table, bucket, flag = bench.put(piece_table(pieces)), bench.room(4 * n), bench.room(4)
        device.gather(table, len(pieces), bucket, n, flag, bench.stream)
        expected = np.zeros(n, np.float32)
        for (x, _, _), (_, offset) in zip(tensors, pieces):
            expected[offset : offset + x.size] = as_float32(x)
        same(bench.get(bucket, np.float32, n), expected, "bucket")
        assert bench.get(flag, np.int32, 1)[0] == np.isfinite(expected).all() == good
        source = values("not finite", n, 3)
        at = bench.put(source)
        device.scatter(at, n, 0.37, table, len(pieces), bench.stream)
        for (x, skip, address), (view, offset) in zip(tensors, pieces):
            result = x.copy()
            seen = arrays.ArrayView(
                result.ctypes.data, x.size, view.dtype, x.shape, x.strides, True, False, result
            )
            numpy.store_f32(source[offset : offset + x.size], 0.37, seen)
            found = bench.get(address, np.uint8, skip + x.nbytes)
            same(found[skip:], result, f"a tensor of {x.dtype} at element {offset}")
            assert not found[:skip].any(), "scatter wrote in front of a tensor"
        bench.drop()


def forgeries(good: np.ndarray) -> dict[str, np.ndarray]:
    """Payloads with one fault each; those with another header are sealed anew, so that only it is wrong."""
    made = {"nothing wrong": good, "no byte": good[:0], "half a header": good[:17], "a byte less": good[:-1]}
    made["a byte more"] = np.append(good, np.uint8(0))
    for what, at in (("magic", 0), ("version", 2), ("codec", 3), ("block", 6), ("bits", 7)):
        made[f"another {what}"] = _sealed(good, at, good[at] ^ 1)
    made |= {
        "dtype 9": _sealed(good, 4, 9),
        "unknown flags": _sealed(good, 5, good[5] | 0x80),
        "the flag of what is not finite": _sealed(good, 5, good[5] ^ wire.FLAG_NONFINITE),
        "another count": _sealed(good, 8, good[8] ^ 1),
        "another length": _sealed(good, 16, good[16] ^ 1),
        "a huge length": _sealed(good, 23, 0x80),
        "reserved bytes": _sealed(good, 24, 1),
    }
    for at in (28, 32, good.size - 1):
        damaged = good.copy()
        damaged[at] ^= 0x10
        made[f"byte {at} damaged"] = damaged
    # A body of noise, with the right checksum: whatever the reference says of it.
    rng = np.random.default_rng(1)
    for seed in range(3):
        noise = good.copy()
        noise[wire.HEADER_BYTES :] = rng.integers(0, 256, noise.size - wire.HEADER_BYTES)
        made[f"noise {seed}"] = _sealed(noise, 24, 0)
    return made


def _sealed(payload: np.ndarray, at: int, byte: int) -> np.ndarray:
    changed = payload.copy()
    changed[at] = byte
    changed[28:32] = 0
    crc = backend("numpy").crc32c(changed, 0)
    changed[28:32] = np.frombuffer(np.uint32(crc).tobytes(), np.uint8)
    return changed
