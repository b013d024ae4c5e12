"""Transports between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi_launcher import mpirun

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("transport_conformance.py")


@pytest.mark.parametrize("kind", ["mpi", "udp"])
def test_conformance(kind):
    run = mpirun(3, [PROGRAM, kind], timeout=100).check()
    assert run.stdout.count("OK ") == 3 * 6, run.stdout
