"""nvcc and hipcc take every kernel, and what they make can be loaded on a machine without a GPU.

Where one is missing it is skipped, with the reason; with ``GPU_COMPILERS=required`` that is a failure.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_gradflow.device import devices

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_build  # noqa: E402


def toolchain(name):
    try:
        return gpu_build.TOOLCHAINS[name]()
    except gpu_build.BuildError as error:
        if os.environ.get("GPU_COMPILERS") == "required":
            raise
        pytest.skip(str(error))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["cuda", "hip"])
def test_every_kernel_is_compiled_and_the_library_loads(name):
    """Quick where `make build` has just done the same: libraries are kept by what they are made of."""
    path = gpu_build.build(toolchain(name), ROOT / "build" / "gpu")
    program = (
        "import sys\n"
        "from hvd_gradflow.device._cuda import Library\n"
        "library = Library(sys.argv[1])\n"
        "print(library.name(), *library.device_count())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stderr
    words = answer.stdout.split(maxsplit=2)
    assert words[0] == name
    assert words[1] != "0" or words[2].strip() not in ("", "None") or name == "hip", answer.stdout


@pytest.mark.parametrize("name", ["cuda", "hip"])
def test_the_architectures_that_were_asked_for(name):
    command = " ".join(toolchain(name).compile)
    for wanted in {"cuda": ("sm_80", "--fmad=false"), "hip": ("gfx90a", "-ffp-contract=off")}[name]:
        assert wanted in command


@pytest.mark.parametrize("name", ["cuda", "hip"])
def test_a_device_that_is_not_there_is_told(name, monkeypatch, tmp_path):
    device = devices.device(f"{name}:9")
    assert device.unavailable()
    monkeypatch.setattr(type(device), "library_path", lambda self: tmp_path / "none.so")
    device.__dict__.pop("library", None)
    variable = {"cuda": "GRADFLOW_WITH_CUDA", "hip": "GRADFLOW_WITH_HIP"}[name]
    assert device.unavailable().startswith("not built: run ")
    assert f"{variable}=1 make build" in device.unavailable()
    with pytest.raises(devices.UnsupportedError, match=f"device {name}:9 cannot be used here: not built"):
        device.allocate(16)


def test_a_file_that_is_no_library(tmp_path):
    from hvd_gradflow.device import _cuda

    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(devices.UnsupportedError, match="make build"):
        _cuda.Library(str(tmp_path / "text.so"))
    with pytest.raises(devices.UnsupportedError, match="has no gf_gpu_library"):
        _cuda.Library(_cuda.__file__)
