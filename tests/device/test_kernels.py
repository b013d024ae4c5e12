"""Conversions, sums, energy, checksum and dither key: against NumPy, the standards and each other."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow.device import _kernels, backend, view
from hvd_gradflow.device.numpy_common import dither

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
CRC_VECTORS = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"", 0),
]


def data_of(raw):
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize(("raw", "crc"), CRC_VECTORS)
def test_crc32c_of_the_standard(kernels, raw, crc):
    assert kernels.crc32c(data_of(raw), 0) == crc


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 20000), cut=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_crc32c_chains_and_agrees(n, cut, seed):
    data = np.random.default_rng(seed).integers(0, 256, n).astype(np.uint8)
    expected = backend("numpy").crc32c(data, 0)
    at = int(cut * n)
    before = _kernels.simd_level()
    for level in _kernels.simd_levels():
        _kernels.set_simd_level(level)
        assert _kernels.crc32c(data) == expected
        assert _kernels.crc32c(data[at:], _kernels.crc32c(data[:at])) == expected
    _kernels.set_simd_level(before)


def any_floats(n, dtype, seed=0):
    raw = np.random.default_rng(seed).integers(0, 256, n * np.dtype(dtype).itemsize).astype(np.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_load(kernels, dtype):
    x = any_floats(4001, dtype)
    x = x[~np.isnan(x)]
    x[17] = np.inf
    out = np.empty(x.size, np.float32)
    assert kernels.load_f32(view(x), out) is False
    with np.errstate(over="ignore"):
        assert out.tobytes() == x.astype(np.float32).tobytes()
    assert kernels.load_f32(view(np.ones(33, dtype)), out[:33]) is True
    for at in (0, 31, 32):
        for bad in (np.inf, -np.inf, np.nan):
            x = np.ones(33, dtype)
            x[at] = bad
            assert kernels.load_f32(view(x), out[:33]) is False
            assert np.isnan(out[at]) == np.isnan(bad)
    assert kernels.load_f32(view(np.zeros(0, dtype)), out[:0]) is True


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 0.3, 2.0**-20])
def test_store(kernels, dtype, scale):
    x = any_floats(4001, np.float32, seed=1)
    x = np.concatenate([x[~np.isnan(x)], any_floats(3000, np.float16, seed=2).astype(np.float32)])
    x = x[~np.isnan(x)]
    out = np.full(x.size, 7, dtype)
    kernels.store_f32(x, scale, view(out))
    with np.errstate(all="ignore"):
        assert out.tobytes() == (x * np.float32(scale)).astype(dtype).tobytes()
    nan = np.array([1, np.nan, 3] * 5, np.float32)
    out = np.zeros(15, dtype)
    kernels.store_f32(nan, 1.0, view(out))
    assert np.isnan(out).tolist() == np.isnan(nan).tolist()


def test_bfloat16_as_torch_has_it(kernels):
    torch = pytest.importorskip("torch")
    x = any_floats(5000, np.float32, seed=3)
    x = x[~np.isnan(x)]
    target = torch.zeros(x.size, dtype=torch.bfloat16)
    kernels.store_f32(x, 1.0, view(target))
    expected = torch.from_numpy(x).bfloat16()
    assert torch.equal(target.view(torch.int16), expected.view(torch.int16))
    out = np.empty(x.size, np.float32)
    kernels.load_f32(view(target), out)
    assert out.tobytes() == expected.float().numpy().tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sum_in_order(kernels, count, dtype):
    rng = np.random.default_rng(count)
    for n in (0, 1, 7, 8, 31, 32, 33, 1000):
        sources = [(rng.normal(size=n) * 10.0 ** rng.integers(-3, 4)).astype(dtype) for _ in range(count)]
        expected = sources[0].copy()
        for s in sources[1:]:
            expected += s
        expected *= np.dtype(dtype).type(1 / 3)
        total = kernels.sum_f32 if dtype == "float32" else kernels.sum_f64
        out = np.empty(n, dtype)
        total(out, sources, 1 / 3)
        assert out.tobytes() == expected.tobytes()
        total(sources[0], sources, 1 / 3)  # in place
        assert sources[0].tobytes() == expected.tobytes()


def test_sums_of_arrays_that_do_not_fit_are_refused():
    out = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="array 1 has 2 elements, expected 3"):
        _kernels.sum_f32(out, [out, out[:2]], 1.0)
    with pytest.raises(ValueError, match="0 arrays to sum"):
        _kernels.sum_f32(out, [], 1.0)
    with pytest.raises(ValueError, match="65 arrays to sum"):
        _kernels.sum_f64(np.zeros(1), [np.zeros(1)] * 65, 1.0)


def test_energy(kernels):
    for n in (0, 1, 7, 8, 9, 1000, 4099):
        x = np.random.default_rng(n).normal(size=n).astype(np.float32)
        found = kernels.energy(x)
        assert found == pytest.approx(math.fsum(float(v) ** 2 for v in x), rel=1e-13)
        assert found == backend("numpy").energy(x)  # to the last bit
    x = np.array([3, np.nan, 4, np.inf, -np.inf] + [0] * 9, np.float32)
    assert kernels.energy(x) == 25
    assert kernels.energy(np.full(10, 1e30, np.float32)) == pytest.approx(1e61)


def test_dither_key(kernels):
    arguments = [1, 2, 3, 4, 5]
    base = kernels.dither_key(*arguments)
    assert base == backend("numpy").dither_key(*arguments)
    keys = {base}
    for i in range(5):
        for value in (0, 2**64 - 1, 77):
            changed = list(arguments)
            changed[i] = value
            keys.add(kernels.dither_key(*changed))
            assert kernels.dither_key(*changed) == backend("numpy").dither_key(*changed)
    assert len(keys) == 16


def test_dither_is_uniform_and_uncorrelated():
    n = 1 << 18
    streams = [dither(key, 0, n) for key in (0, 1, 2**40, 12345)]
    for s in streams:
        u = (s >> np.uint32(8)).astype(np.float64) / 2**24
        counts = np.histogram(u, 64, (0, 1))[0]
        chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
        assert 20 < chi2 < 130  # 63 degrees of freedom: beyond this with probability 1e-6
        for lag in (1, 2, 8, 32, 256):
            assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(n)
        ones = (s[:, None] >> np.arange(9, 32, dtype=np.uint32) & 1).mean(axis=0)
        assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(n)
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)
    assert (dither(5, 2**32 - 4, 8)[4:] == dither(5, 2**32, 4)).all()
    assert not (dither(5, 2**32, 4) == dither(5, 0, 4)).any()
