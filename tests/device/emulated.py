"""The GPU kernels on the CPU: the same .cu files, compiled for cuda/emulator, as a device."""

import os
import sys
from pathlib import Path

from hvd_gradflow.device.gpu_device import GpuDevice

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_build  # noqa: E402


class EmulatedDevice(GpuDevice):
    """Built when it is first used; GPU_SANITIZER=address or thread builds it so."""

    name = "emulated"
    compiler = "a C++ compiler"
    dlpack_type = 1

    def library_path(self):
        toolchain = gpu_build.emulated_toolchain(os.environ.get("GPU_SANITIZER", ""))
        return gpu_build.build(toolchain, ROOT / "build" / "gpu")
