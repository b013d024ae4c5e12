"""Fixtures of the communication layer's tests."""

import pytest

from hvd_gradflow.comm import _ldpc

LDPC_BACKENDS = ("numpy", *_ldpc.simd_levels())


@pytest.fixture(params=LDPC_BACKENDS)
def ldpc_backend(request):
    """The name of the reference, then of the compiled backend, on every instruction level of this machine."""
    if request.param == "numpy":
        yield "numpy"
        return
    before = _ldpc.simd_level()
    _ldpc.set_simd_level(request.param)
    yield "cpu"
    _ldpc.set_simd_level(before)
