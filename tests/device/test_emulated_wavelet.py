"""The wavelet transforms of the GPU kernels, emulated: the bits are those of the CPU's."""

import numpy as np
import pytest

from hvd_gradflow.device import wavelet
from hvd_gradflow.device.registry import backend
from hvd_gradflow.errors import DeviceError
from hvd_gradflow.testing.device_bench import same, values

# Elements and columns: nothing to transform, tails, more than a block of threads, matrices, rests of them.
SIZES = (
    *((n, 0) for n in (0, 1, 7, 8, 24, 31, 1000, 4101)),
    *((64 * 48, 48), (35 * 27, 27), (5 * 3, 3), (9 * 100, 100), (64 * 65, 65)),
)


def on_device(bench, x, name, levels, columns, inverse, finite=None, skip=0):
    """The transform, from and to addresses `skip` elements behind an aligned one."""
    library, n = bench.device.library, x.size
    at = bench.put(np.concatenate([np.zeros(skip, np.float32), x])) + 4 * skip
    out = bench.put(np.zeros(n + skip, np.float32))
    flag = 0 if finite is None else bench.put(np.array([7 * finite], np.int32))
    scratch = bench.room(library.wavelet_scratch_bytes(n))
    extents = wavelet.extents(n, levels, columns)
    places = (at, out + 4 * skip, flag, scratch, bench.stream.handle)
    library.wavelet(wavelet.TAPS[name], levels, n, *extents, columns, inverse, *places)
    found = bench.get(out, np.float32, n + skip)
    bench.get(scratch, np.uint8, library.wavelet_scratch_bytes(n))  # nothing was written behind it
    assert not found[:skip].any(), "a kernel wrote before the array"
    return found[skip:]


def on_host(x, name, levels, columns, inverse, finite=True):
    out = np.empty_like(x)
    backend("cpu").wavelet(x, out, name, levels, columns, inverse, finite)
    return out


@pytest.mark.parametrize("name", wavelet.FILTERS)
def test_the_bits_of_the_host(bench, name):
    for n, columns in SIZES:
        for levels in (1, 2, 3, 5, 8):
            x = values("laplace", n, n)
            x[5:9] = (3e38, 3.3e38, -0.0, 1e-44)[: x[5:9].size]
            for inverse in (False, True):
                found = on_device(bench, x, name, levels, columns, inverse, skip=levels % 2)
                words = f"{n} elements in rows of {columns}, {levels} levels, inverse {inverse}"
                same(found, on_host(x, name, levels, columns, inverse), words)
            bench.drop()


@pytest.mark.parametrize("columns", [0, 40])
@pytest.mark.parametrize("name", ["haar", "db4"])
def test_what_is_not_finite(bench, name, columns):
    """It is not bounded where a word on the device says that the input is not finite."""
    x = values("laplace", 1600, 1)
    x[100], x[300:304] = np.inf, 3.3e38
    for inverse in (False, True):
        for finite in (False, True):
            found = on_device(bench, x, name, 3, columns, inverse, finite)
            expected = on_host(x, name, 3, columns, inverse, finite)
            assert np.isinf(expected).any() == (not finite)
            number = ~np.isnan(expected)  # which NaN an operation gives is the processor's choice
            assert np.array_equal(np.isnan(found), ~number)
            same(found[number], expected[number], f"inverse {inverse}, finite {finite}")


def test_what_cannot_be_is_refused(bench):
    library, filters = bench.device.library, wavelet.TAPS["db2"]
    at, out, scratch = bench.room(256), bench.room(256), bench.room(library.wavelet_scratch_bytes(64))
    for extents, apart in (
        ((64, 0, 60, 0), True),  # not a multiple of 8
        ((64, 0, 72, 0), True),  # more than there is
        ((64, 8, 16, 8), True),  # a row is shorter
        ((64, 16, 8, 8), True),  # not so many rows
        ((60, 8, 8, 8), True),  # not whole rows
        ((64, 0, 64, 0), False),  # in place
    ):
        places = (at, out if apart else at + 128, 0, scratch, bench.stream.handle)
        with pytest.raises(DeviceError, match="wavelet: an argument that cannot be"):
            library.wavelet(filters, 3, *extents, False, *places)
    with pytest.raises(DeviceError, match="scratch"):
        library.wavelet(filters, 3, 64, 0, 64, 0, False, at, out, 0, scratch + 4, bench.stream.handle)
