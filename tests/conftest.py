"""Fixtures shared by all tests."""

from __future__ import annotations

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
