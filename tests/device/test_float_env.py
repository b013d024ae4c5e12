"""Kernels give the same bytes in a thread that flushes denormals or rounds otherwise."""

import platform

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import _kernels, backend, view, wire
from hvd_gradflow.device.float_env import default_float_env

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is x86's")

FLUSH = 0x8040  # FTZ and DAZ
TOWARDS_ZERO = 0x6000


@pytest.fixture(params=_kernels.simd_levels())
def level(request):
    before = _kernels.simd_level()
    _kernels.set_simd_level(request.param)
    yield request.param
    _kernels.set_simd_level(before)


def with_mxcsr(bits, work):
    """Run `work` as in a thread with these bits set; nothing else may run meanwhile."""
    saved = _kernels.get_mxcsr()
    _kernels.set_mxcsr(saved | bits)
    try:
        result = work()
        kept = _kernels.get_mxcsr()
    finally:
        _kernels.set_mxcsr(saved)
    assert kept & 0xE040 == (saved | bits) & 0xE040  # the caller's mode is given back
    return result


def tiny(n=600):
    rng = np.random.default_rng(0)
    return (rng.normal(size=n) * 2e-39).astype(np.float32)


def everything(x, other):
    """Bytes of every kernel's results; the inputs are made outside."""
    k = backend("cpu")
    results = []
    for name in codecs.names():
        codec = codecs.get(name)
        if codec.wire_id not in wire.CODECS:
            continue  # it is NumPy's throughout
        for c in [codec] + ([codec(rounding="stochastic")] if "rounding" in codec.options() else []):
            spec, n = c.spec(), x.size
            out, residual = np.zeros(k.max_encoded_size(spec, n), np.uint8), other.copy()
            out = out[: k.encode(spec, x, residual, 5, 0, 1, out)]
            y, acc = np.zeros(n, np.float32), other.copy()
            k.decode(spec, out, y)
            k.decode_add(spec, out, acc)
            results += [out, residual, y, acc]
    half, total, loaded = np.zeros(x.size, np.float16), np.zeros_like(x), np.zeros_like(x)
    k.store_f32(other, 2.0**115, view(half))  # exact, whatever the mode
    k.load_f32(view(half), loaded)
    k.sum_f32(total, [x, other, x], 0.375)
    return [r.tobytes() for r in (*results, half, loaded, total)] + [k.energy(x)]


@pytest.mark.parametrize("bits", [FLUSH, TOWARDS_ZERO, FLUSH | TOWARDS_ZERO])
def test_the_mode_of_the_calling_thread_does_not_matter(level, bits):
    x, other = tiny(), tiny()[::-1].copy()
    expected = everything(x, other)
    assert with_mxcsr(bits, lambda: everything(x, other)) == expected


def test_the_helper_really_flushes():
    x = tiny()
    plain = x * np.float32(0.5)
    flushed = with_mxcsr(FLUSH, lambda: x * np.float32(0.5))
    assert plain.any()
    assert not flushed.any()


def test_numpy_in_a_thread_that_flushes():
    """What default_float_env is for: NumPy itself, around the kernels; the caller's mode is given back."""
    values = tiny()
    wanted = values * np.float32(0.5)
    assert np.count_nonzero(wanted) > 500

    def inside():
        with default_float_env():
            return values * np.float32(0.5)

    assert np.array_equal(with_mxcsr(FLUSH, inside), wanted)
    assert not np.count_nonzero(with_mxcsr(FLUSH, lambda: values * np.float32(0.5)))
