"""Fixtures of the device layer's tests."""

import pytest
from device.emulated import EmulatedDevice

from hvd_gradflow.device import _kernels, backend
from hvd_gradflow.testing.device_bench import Bench


@pytest.fixture(scope="session")
def emulated():
    """The GPU kernels on the CPU."""
    return EmulatedDevice()


@pytest.fixture
def bench(emulated):
    """The same with a stream, and memory that goes away with the test."""
    made = Bench(emulated)
    yield made
    made.drop()


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
