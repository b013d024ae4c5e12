"""Fixtures of the codecs' tests."""

from __future__ import annotations

import pytest

from hvd_gradflow.device import _kernels, registry

PLATFORMS = ("numpy", *_kernels.simd_levels())


@pytest.fixture(params=PLATFORMS)
def platform(request, monkeypatch):
    """Run the test on the reference, and on every instruction level that this machine has."""
    if request.param == "numpy":
        monkeypatch.setattr(registry, "_default", "numpy")
        yield request.param
        return
    before = _kernels.simd_level()
    monkeypatch.setattr(registry, "_default", "cpu")
    _kernels.set_simd_level(request.param)
    yield request.param
    _kernels.set_simd_level(before)
