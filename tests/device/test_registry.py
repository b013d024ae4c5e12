"""Backends by name, the list of kernels, instruction levels, and a native module that is missing."""

import os
import subprocess
import sys

import numpy as np
import pytest

from hvd_gradflow import device
from hvd_gradflow.device import _kernels, base, native, registry
from hvd_gradflow.device.kernels import KERNELS
from hvd_gradflow.errors import ConfigError, UnsupportedError


def test_names():
    assert device.names() == ["cpu", "numpy"]
    with pytest.raises(ConfigError, match="unknown backend 'tpu'; known: cpu, numpy"):
        device.backend("tpu")
    assert device.backend("cpu") is device.backend("cpu")


def test_descriptions():
    assert _kernels.simd_level() in device.backend("cpu").describe()
    assert "NumPy" in device.backend("numpy").describe()
    assert device.describe() == device.backend().describe()


def test_a_backend_needs_all_kernels():
    class Partial(base.Backend):
        name = "partial"

    with pytest.raises(ConfigError, match="'partial' has no kernel 'max_encoded_size'"):
        base.check_backend(Partial())
    for kernel in KERNELS:
        setattr(Partial, kernel.name, lambda self, nothing: None)
    with pytest.raises(ConfigError, match=r"kernel 'max_encoded_size': arguments \('nothing',\), expected"):
        base.check_backend(Partial())


def test_a_name_is_registered_once(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_made", dict(registry._made))
    device.register("mine", lambda: device.backend("numpy"))
    assert device.backend("mine") is device.backend("numpy")
    with pytest.raises(ConfigError, match="'mine' is registered already"):
        device.register("mine", lambda: None)


def in_new_process(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def test_the_environment_chooses():
    code = "from hvd_gradflow import device; print(device.describe())"
    done = in_new_process(code, GRADFLOW_BACKEND="numpy")
    assert "reference" in done.stdout, done.stderr
    done = in_new_process(code, GRADFLOW_SIMD="portable")
    assert done.stdout.startswith("compiled, portable"), done.stderr


def test_a_level_that_the_machine_lacks_is_refused(monkeypatch):
    before = _kernels.simd_level()
    with pytest.raises(ConfigError, match=r"GRADFLOW_SIMD='neon': this machine has .*portable"):
        _kernels.set_simd_level("neon")
    assert _kernels.simd_level() == before
    _kernels.set_simd_level("auto")
    assert _kernels.simd_level() == _kernels.simd_levels()[0]
    _kernels.set_simd_level(before)
    if "avx512" not in _kernels.simd_levels():
        done = in_new_process("from hvd_gradflow import device; device.backend()", GRADFLOW_SIMD="avx512")
        assert done.returncode == 1
        assert "ConfigError: GRADFLOW_SIMD='avx512': this machine has" in done.stderr


def test_a_missing_native_module_is_told_when_it_is_called(monkeypatch):
    monkeypatch.setitem(sys.modules, "hvd_gradflow.device._kernels", None)
    monkeypatch.delattr(sys.modules["hvd_gradflow.device"], "_kernels")
    monkeypatch.setattr(registry, "_made", {})
    with pytest.raises(UnsupportedError, match=r"cannot be loaded \(.*\): build them with `make build`"):
        native.kernels()
    with pytest.raises(UnsupportedError, match="GRADFLOW_BACKEND=numpy"):
        device.backend("cpu")
    x = np.arange(4, dtype=np.float32)
    assert device.backend("numpy").energy(device.view(x).numpy()) == 14


def test_the_capsule_of_the_c_interface():
    assert 'capsule object "hvd_gradflow.device._kernels.api"' in repr(_kernels.api_capsule())
