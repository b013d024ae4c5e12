"""Fixtures shared by all tests."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from mpi_launcher import horovodrun as _horovodrun
from mpi_launcher import mpirun as _mpirun


@pytest.fixture
def mpirun():
    """`mpi_launcher.mpirun`: run a Python file on several ranks, with a hard timeout."""
    return _mpirun


@pytest.fixture
def horovodrun():
    """`mpi_launcher.horovodrun`: the same through horovodrun."""
    return _horovodrun


@pytest.fixture
def small_fashion(tmp_path):
    """Four files in the format of Fashion-MNIST, with 256 + 64 images of noise."""

    def write(name, array):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / name).write_bytes(gzip.compress(head + array.tobytes()))

    rng = np.random.default_rng(0)
    for kind, n in (("train", 256), ("t10k", 64)):
        write(f"{kind}-images-idx3-ubyte.gz", rng.integers(0, 256, (n, 28, 28), np.uint8))
        write(f"{kind}-labels-idx1-ubyte.gz", rng.integers(0, 10, n, np.uint8))
    return tmp_path
