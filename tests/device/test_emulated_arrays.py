"""The kernels on arrays that only the engine's thread calls, emulated: the bits are those of the CPU's."""

import ctypes

import numpy as np
import pytest

from hvd_gradflow.device.device import Device
from hvd_gradflow.device.memory import SEGMENT
from hvd_gradflow.device.registry import backend
from hvd_gradflow.errors import DeviceError
from hvd_gradflow.reduce.results import LARGEST as LARGEST_OF
from hvd_gradflow.reduce.results import saturate
from hvd_gradflow.testing.device_bench import same, values

LENGTHS = (0, 1, 3, 4, 7, 8, 9, 2047, 2049, 300_001)
LARGEST = np.finfo(np.float32).max
# Quiet and signalling NaN with payloads, infinities, subnormals, zeros, the largest float.
ODD = np.array(
    (0x7FC00123, 0xFFC45678, 0x7F800001, 0xFF812345, 0x7F800000, 0xFF800000, 1, 0x80000001, 0x007FFFFF)
    + (0x80000000, 0, 0x7F7FFFFF, 0xFF7FFFFF),
    np.uint32,
).view(np.float32)


def odd(n, seed):
    """Return values of all magnitudes; arrays of seeds 1 and 2 begin with all pairs of odd ones."""
    x = values("laplace", n, seed)
    x[::3] = values("tiny", n, seed)[::3]
    pairs = np.repeat(ODD, ODD.size) if seed % 2 else np.tile(ODD, ODD.size)
    x[: pairs.size] = pairs[:n]
    return x


def numbers(n, seed):
    """Return the same without what is not finite."""
    x = odd(n, seed)
    x[~np.isfinite(x)] = -0.0
    return x


def shifted(bench, x, skip):
    """Put an array `skip` elements behind an aligned address."""
    return bench.put(np.concatenate([np.zeros(skip, np.float32), x])) + 4 * skip


def taken(bench, address, n, skip=0):
    """Return what became of it; before it there must still be zeros."""
    found = bench.get(address - 4 * skip, np.float32, n + skip)
    assert not found[:skip].view(np.uint32).any(), "a kernel wrote before the array"
    return found[skip:]


def flag(bench, value):
    return bench.put(np.array([value], np.int32))


def summed(*sources, scale):
    expected = np.empty(sources[0].size, np.float32)
    backend("cpu").sum_f32(expected, list(sources), scale)
    return expected


# ---- sum ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [0, 1])
def test_sums(bench, skip):
    handle, library = bench.stream.handle, bench.device.library
    for n in LENGTHS:
        a, b = odd(n, 1), odd(n, 2)
        at, other, apart = (shifted(bench, x, skip) for x in (a, b, np.zeros_like(a)))
        for scale in (1.0, 0.3):
            library.sum(apart, at, other, scale, n, 0, handle)
            same(taken(bench, apart, n, skip), summed(a, b, scale=scale), f"{n} elements, times {scale}")
            library.sum(apart, at, 0, scale, n, 0, handle)
            same(taken(bench, apart, n, skip), summed(a, scale=scale), f"{n} of one array, times {scale}")
        same(taken(bench, other, n, skip), b, "the second array")
        library.sum(at, at, other, 0.7, n, 0, handle)
        same(taken(bench, at, n, skip), summed(a, b, scale=0.7), f"{n} elements, in place of the first")
        at = shifted(bench, a, skip)
        library.sum(other, at, other, 0.7, n, 0, handle)
        same(taken(bench, other, n, skip), summed(a, b, scale=0.7), f"{n} elements, in place of the second")
        same(taken(bench, at, n, skip), a, "the first array")
        bench.drop()


def test_arrays_that_lie_differently(bench):
    n, handle = 2049, bench.stream.handle
    a, b = odd(n, 1), odd(n, 2)
    for skips in ((0, 1, 0), (1, 0, 0), (0, 0, 1), (3, 2, 1)):
        at, other, apart = (shifted(bench, x, skip) for x, skip in zip((a, b, np.zeros_like(a)), skips))
        bench.device.library.sum(apart, at, other, 0.5, n, 0, handle)
        same(taken(bench, apart, n, skips[2]), summed(a, b, scale=0.5), f"{skips} elements off")


@pytest.mark.parametrize("target", ["first", "apart", "null"])
def test_whether_a_sum_is_finite(bench, target):
    """It is asked before the factor, and an answer that was no stays no."""
    library, handle = bench.device.library, bench.stream.handle
    for n in (0, 1, 9, 4099):
        good = values("laplace", n, 1)
        cases = [(good, good, True)]
        for bad, other in ((np.inf, 0), (np.nan, 0), (0, -np.inf), (LARGEST, LARGEST)) if n else ():
            a, b = good.copy(), good.copy()
            a[n - 1], b[n - 1] = bad, other
            cases.append((a, b, False))
        for a, b, finite in cases:
            at, other, after = bench.put(a), bench.put(b), flag(bench, 0)
            asked, alone = flag(bench, 7), flag(bench, 7)
            apart = {"first": at, "apart": bench.put(a), "null": 0}[target]
            library.sum(0, at, 0, 1e38, n, alone, handle)
            library.sum(apart, at, other, 1e38, n, asked, handle)
            library.sum(0, at, other, 1e38, n, after, handle)
            assert bench.get(asked, np.int32, 1)[0] == (7 if finite else 0)
            assert bench.get(alone, np.int32, 1)[0] == (7 if np.isfinite(a).all() else 0)
            assert bench.get(after, np.int32, 1)[0] == 0
            if apart:
                same(bench.get(apart, np.float32, n), summed(a, b, scale=1e38), "the sum beside the answer")
            if target != "first":
                same(bench.get(at, np.float32, n), a, "the first array")
        bench.drop()


def test_nothing_to_do(bench):
    library, handle = bench.device.library, bench.stream.handle
    library.sum(0, bench.put(odd(9, 1)), 0, 2.0, 9, 0, handle)
    library.energies(0, 0, np.zeros(0, np.uint64), 0, handle)
    library.scale_segments(0, np.zeros(0, np.uint8), handle)
    library.bound(0, 0, 0, handle)
    library.owe(0, 0, 0, 0, handle)
    bench.stream.synchronize()


# ---- energies and steps of many tensors ---------------------------------------------------------------


def tensor_ends(count):
    """Ends of tensors of many lengths, some empty, and one of more chunks than lanes."""
    rng = np.random.default_rng(count)
    sizes = rng.integers(0, 60, count)
    sizes[rng.random(count) < 0.1] = 0
    sizes[count // 2] = 70_001
    if count > 1:
        sizes[[0, -1]] = 0, 1024
        sizes[1:8] = 1, 8, 1023, 1025, 2048, 0, 0
    return np.cumsum(sizes).astype(np.uint64)


def parts(x, ends):
    return np.split(x, ends[:-1].astype(np.int64))


def test_the_energy_of_one_array(bench):
    for n in LENGTHS:
        x, residual = values("not finite", n, 1), odd(n, 2)
        out = bench.room(16)
        ends = np.array([n], np.uint64)
        bench.device.library.energies(bench.put(x), bench.put(residual), ends, out, bench.stream.handle)
        expected = np.array([backend("cpu").energy(x), backend("cpu").energy(residual)])
        same(bench.get(out, np.float64, 2), expected, f"energies of {n} elements")
        bench.drop()


@pytest.mark.parametrize(
    ("count", "skip", "owing"), [(1, 0, True), (1, 1, True), (700, 1, True), (3000, 0, False)]
)
def test_energies_of_tensors(bench, count, skip, owing):
    """With residuals or without; many tensors take more than one launch."""
    library, handle, ends = bench.device.library, bench.stream.handle, tensor_ends(count)
    x, residual = values("not finite", int(ends[-1]), 1), values("tiny", int(ends[-1]), 2)
    x[-1000:] *= np.float32(1e30)
    at, left = shifted(bench, x, skip), shifted(bench, residual, skip) if owing else 0
    given, out = ends.copy(), bench.room(16 * count)
    library.energies(at, left, given, out, handle)
    given[:] = 0  # the caller's again
    expected = np.zeros((count, 2))
    for column, array in enumerate((x, residual) if owing else (x,)):
        expected[:, column] = [backend("cpu").energy(part) for part in parts(array, ends)]
    same(bench.get(out, np.float64, 2 * count), expected, "energies")


def test_energies_over_every_bit_pattern(bench):
    """In one block of threads: ThreadSanitizer takes the shared memory of two blocks for the same."""
    x = values("any bits", 70_001, 3)
    ends, out = np.array([x.size], np.uint64), bench.room(16)
    bench.device.library.energies(bench.put(x), 0, ends, out, bench.stream.handle)
    with np.errstate(all="ignore"):
        expected = np.array([backend("numpy").energy(x), 0.0])
    same(bench.get(out, np.float64, 2), expected, "energies")


@pytest.mark.parametrize("count", [1, 128, 700, 3000])
@pytest.mark.parametrize("skip", [0, 1])
def test_steps_of_segments(bench, count, skip):
    table = np.zeros(count, SEGMENT)
    table["end"] = ends = tensor_ends(count)
    table["step"] = np.linspace(0.0, 3.0, count)
    table["step"][-1] = 1e30
    n = int(ends[-1])
    x = odd(n, 1)
    expected = [summed(part, scale=step) for part, step in zip(parts(x, ends), table["step"].tolist())]
    at, given = shifted(bench, np.append(x, np.float32(5)), skip), table.copy()
    bench.device.library.scale_segments(at, given.view(np.uint8), bench.stream.handle)
    given["step"] = 77
    same(taken(bench, at, n + 1, skip), np.concatenate([*expected, np.float32([5])]), "scaled")


def test_steps_of_deadzones_segments(bench):
    """Ends that are multiples of 32, as the engine's are; segments shorter and longer than a warp's span."""
    sizes = np.array([32, 4096, 64, 1024, 32, 100_000 // 32 * 32, 7])
    table = np.zeros(sizes.size, SEGMENT)
    table["end"], table["step"] = np.cumsum(sizes), [0.5, 1e-30, 3.0, 1.0, 1e30, 0.1, 2.0]
    x = odd(int(sizes.sum()), 2)
    at = bench.put(x)
    bench.device.library.scale_segments(at, table.view(np.uint8), bench.stream.handle)
    expected = [summed(p, scale=s) for p, s in zip(parts(x, table["end"]), table["step"].tolist())]
    same(bench.get(at, np.float32, x.size), np.concatenate(expected), "scaled")


def test_ends_that_descend_are_refused(bench):
    table = np.zeros(2, SEGMENT)
    table["end"] = 64, 32
    with pytest.raises(DeviceError, match="scale_segments: an argument that cannot be"):
        bench.device.library.scale_segments(0, table.view(np.uint8), bench.stream.handle)
    with pytest.raises(DeviceError, match="energies: an argument that cannot be"):
        bench.device.library.energies(0, 0, np.array([64, 32], np.uint64), 0, bench.stream.handle)


# ---- bound and owe ------------------------------------------------------------------------------------


def bounded(x):
    return np.where(np.isinf(x), np.copysign(LARGEST, x), x)


@pytest.mark.parametrize("skip", [0, 1])
def test_bounds(bench, skip):
    library, handle = bench.device.library, bench.stream.handle
    for n in LENGTHS:
        x = odd(n, 1)
        x[n // 2 :: 1000] = np.inf
        expected = {None: bounded(x), 0: x, 1: bounded(x), 7: bounded(x)}
        for finite, wanted in expected.items():
            at, asked = shifted(bench, x, skip), 0 if finite is None else flag(bench, finite)
            library.bound(at, n, asked, handle)
            same(taken(bench, at, n, skip), wanted, f"{n} elements, finite: {finite}")
            assert finite is None or bench.get(asked, np.int32, 1)[0] == finite
        bench.drop()


def test_a_sum_is_bounded_unless_its_input_was_infinite(bench):
    """The engine's way: the look and what depends on it follow each other on the stream."""
    library, handle, n = bench.device.library, bench.stream.handle, 5000
    for bad in (1.0, np.inf):
        x = np.full(n, LARGEST, np.float32)
        x[1234] = bad
        at, other, finite = bench.put(x), bench.put(x), flag(bench, 1)
        library.sum(0, at, 0, 1.0, n, finite, handle)
        library.sum(at, at, other, 1.0, n, 0, handle)
        library.bound(at, n, finite, handle)
        with np.errstate(over="ignore"):
            expected = x + x
        if np.isfinite(bad):
            expected = bounded(expected)
        same(bench.get(at, np.float32, n), expected, f"sum of arrays with {bad}")


@pytest.mark.parametrize("skip", [0, 1])
def test_finite_ones_stay_finite_in_16_bits(bench, skip):
    for dtype, largest in LARGEST_OF.items():
        for n in LENGTHS:
            x = odd(n, 1)
            x[n // 2 :] *= np.float32(1e6)
            expected = x.copy()
            with np.errstate(all="ignore"):
                saturate(expected, dtype)
            at = shifted(bench, x, skip)
            bench.device.library.saturate(at, n, largest, bench.stream.handle)
            same(taken(bench, at, n, skip), expected, f"{n} elements of dtype {dtype}")
            bench.drop()


@pytest.mark.parametrize("skip", [0, 1])
def test_what_a_residual_owes(bench, skip):
    library, handle = bench.device.library, bench.stream.handle
    for n in LENGTHS:
        sent, arrives, residual = odd(n, 1), odd(n, 2), numbers(n, 3)
        arrives[n // 2 : n // 2 + 100] = sent[n // 2 : n // 2 + 100]  # nothing was lost
        residual[n // 2 : n // 2 + 50] = -0.0
        residual[n - n // 4 :], sent[n - n // 4 :], arrives[n - n // 4 :] = LARGEST, LARGEST, 0
        with np.errstate(all="ignore"):
            rounding = sent - arrives
            owes = np.isfinite(rounding) & (rounding != 0)
            expected = np.where(owes, bounded(residual + rounding), residual)
        places = [shifted(bench, x, skip) for x in (residual, sent, arrives)]
        library.owe(*places, n, handle)
        same(taken(bench, places[0], n, skip), expected, f"residual of {n} elements")
        same(taken(bench, places[1], n, skip), sent, "values")
        same(taken(bench, places[2], n, skip), arrives, "what arrives")
        bench.drop()


def test_a_residual_that_is_no_number_keeps_its_payload(bench):
    residual, step = np.repeat(ODD, 2), np.tile(np.float32([0, 1]), ODD.size)
    at, zeros = bench.put(residual), bench.put(step * 0)
    bench.device.library.owe(at, bench.put(step), zeros, step.size, bench.stream.handle)
    with np.errstate(all="ignore"):
        expected = np.where(step != 0, bounded(residual + step), residual)
    same(bench.get(at, np.float32, step.size), expected, "residual")


# ---- the structure ------------------------------------------------------------------------------------


def test_the_address_of_the_structure(emulated):
    class Beginning(ctypes.Structure):
        _fields_ = (("version", ctypes.c_int), ("name", ctypes.c_char_p))

    found = Beginning.from_address(emulated.api_address)
    assert (found.version, found.name) == (2, b"emulated")
    assert emulated.api_address == emulated.library.api_address()
    assert Device.api_address == 0
