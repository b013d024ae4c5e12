"""The kernels on a real GPU: `make test-gpu`. Skipped, with the reason, where there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvd_gradflow import codec
from hvd_gradflow.comm.ldpc import LdpcStaircase
from hvd_gradflow.device import devices, wavelet
from hvd_gradflow.device.memory import piece_table
from hvd_gradflow.testing.device_bench import Bench, same, specs, values
from hvd_gradflow.testing.device_conformance import DeviceConformance
from hvd_gradflow.testing.device_kernels import reference
from hvd_gradflow.testing.device_ldpc import check_erasure_code
from tests.device.test_emulated_wavelet import SIZES, on_device, on_host
from tests.mpi_launcher import mpirun

ROOT = Path(__file__).resolve().parents[2]
NAME = os.environ.get("GPU_DEVICE", "cuda")
pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu():
    device = devices.device(NAME)
    if reason := device.unavailable():
        pytest.skip(f"{device!r}: {reason}")
    return device


@pytest.fixture
def torch(gpu):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"this torch ({torch.__version__}) sees no GPU: install a build for {gpu.name}")
    return torch


class TestGpu(DeviceConformance):
    name = NAME
    long = 20_000_003

    def slow(self, device, stream):
        device.delay(0.1, stream)


def test_torch_tensors_on_torchs_own_stream(gpu, torch):
    """A slow kernel of torch's writes the gradient; the encoder must see what it wrote."""
    bench = Bench(gpu)
    for label, spec in specs(gpu):
        x = values("laplace", 100_001, 1)
        source = torch.from_numpy(x).cuda()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            stream = gpu.wrap_stream(side.cuda_stream)
            gradient = torch.zeros_like(source)
            gpu.delay(0.05, stream)
            gradient.add_(source)
            at = gpu.view(gradient, stream)
            most = gpu.max_encoded_size(spec, x.size)
            out, size, scratch = bench.room(most), bench.room(8), bench.scratch(spec, x.size)
            gpu.encode(spec, at.address, 0, x.size, 5, 0, at.dtype, out, size, scratch, stream)
        side.synchronize()
        written = int(bench.get(size, np.uint64, 1)[0])
        same(bench.get(out, np.uint8, most)[:written], reference(spec, x, key=5)[0], f"payload, {label}")
        bench.drop()


def test_torch_tensors_of_all_types_in_one_bucket(gpu, torch):
    bench, pieces, tensors, n = Bench(gpu), [], [], 0
    for i, kind in enumerate((torch.float32, torch.float16, torch.bfloat16) * 100):
        tensor = torch.randn(7 * i + 1, device="cuda").to(kind)
        pieces.append((gpu.view(tensor, None), n))
        tensors.append((tensor, n))
        n = -(-(n + tensor.numel()) // 32) * 32
    torch.cuda.synchronize()
    table, bucket, flag = bench.put(piece_table(pieces)), bench.room(4 * n), bench.room(4)
    gpu.gather(table, len(pieces), bucket, n, flag, bench.stream)
    found = bench.get(bucket, np.float32, n)
    for tensor, offset in tensors:
        same(found[offset : offset + tensor.numel()], tensor.float().cpu().numpy(), f"tensor at {offset}")


@pytest.mark.parametrize("name", wavelet.FILTERS)
def test_wavelets_are_those_of_the_host(gpu, name):
    bench = Bench(gpu)
    for n, columns in (*SIZES, (5_000_001, 0), (1001 * 2003, 2003)):
        x = values("laplace", n, n)
        for levels in (1, 3, 8):
            for inverse in (False, True):
                found = on_device(bench, x, name, levels, columns, inverse)
                same(found, on_host(x, name, levels, columns, inverse), f"{n} elements, {levels} levels")
        bench.drop()


def test_what_lies_elsewhere_is_refused(gpu, torch):
    with pytest.raises(TypeError):
        gpu.view(torch.zeros(4), None)
    with pytest.raises(ValueError, match="not contiguous"):
        gpu.view(torch.zeros(4, 4, device="cuda").t(), None)


def test_copies_leave_the_payload_only(gpu):
    """The way of the reducer: encode, copy the payload to pinned memory, and back into another's decoder."""
    bench, spec, n = Bench(gpu), codec.get("int8").spec(), 1_000_003
    x = values("laplace", n, 3)
    payload, _ = bench.encode(spec, x)
    same(payload, reference(spec, x)[0], "payload")
    status, found = bench.decode(spec, payload, np.zeros(n, np.float32))
    assert status == 0
    assert np.abs(found - x).max() <= np.abs(x).max() / 127


@pytest.mark.parametrize("symbol_bytes", [7, 1400, 1500])
def test_the_erasure_code(gpu, symbol_bytes):
    bench = Bench(gpu)
    lost = np.random.default_rng(1).permutation(1150)[:110].tolist()
    check_erasure_code(bench, LdpcStaircase(1000, 150), symbol_bytes, lost)
    bench.drop()


def test_two_ranks_train_as_on_the_host(gpu, torch):
    """Encoded on the GPU or on the host: the same weights, to the bit, though gradients come late."""
    weights = []
    for device in ("host", "auto"):
        env = {"GRADFLOW_RANKS_PER_NODE": "1", "GRADFLOW_DEVICE": device}
        run = mpirun(2, [Path(__file__).with_name("train_on_gpu.py"), "cuda"], timeout=240, env=env).check()
        assert "not encoded there" not in run.stderr, run.stderr
        lines = [line.split() for line in run.stdout.splitlines() if line.startswith("WEIGHTS")]
        weights.append([line[1:3] for line in lines])  # not the bytes: there may be a credit more
    assert len(weights[0]) == 7
    assert weights[0] == weights[1]


def test_the_memory_checker_is_content(gpu):
    checker = shutil.which("compute-sanitizer")
    if gpu.name != "cuda" or checker is None:
        pytest.skip("no compute-sanitizer: it comes with the CUDA toolkit")
    tests = "all_lengths or all_blocks or forged or given_steps or many_tensors or statistics"
    for tool in ("memcheck", "racecheck", "synccheck"):
        checked = [checker, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "pytest", "-q"]
        run = subprocess.run(
            [*checked, "-k", f"TestGpu and ({tests})", "tests/gpu/test_on_gpu.py"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert run.returncode == 0, f"{tool}:\n{run.stdout[-4000:]}\n{run.stderr[-2000:]}"
