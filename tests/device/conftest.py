"""Fixtures of the device layer's tests."""

import pytest

from hvd_gradflow.device import _kernels, backend


@pytest.fixture(params=("numpy", *_kernels.simd_levels()))
def kernels(request):
    """The reference, and the compiled backend on every instruction level of this machine."""
    if request.param == "numpy":
        yield backend("numpy")
        return
    before = _kernels.simd_level()
    _kernels.set_simd_level(request.param)
    yield backend("cpu")
    _kernels.set_simd_level(before)
