"""wavelet in the engine, in two parts: ``reduce_wavelet.py``, on nodes of one rank and of two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi_launcher import mpirun

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("reduce_wavelet.py")
SMALLEST = {"GRADFLOW_WINDOW": "1", "GRADFLOW_SHM_SLOTS": "2", "GRADFLOW_CHUNK_KIB": "4"}


@pytest.mark.parametrize(
    ("ranks", "per_node", "settings"),
    [(3, 2, SMALLEST), pytest.param(2, 1, {}, marks=pytest.mark.slow)],
)
def test_streams(ranks, per_node, settings):
    env = {"GRADFLOW_RANKS_PER_NODE": str(per_node), **settings}
    run = mpirun(ranks, [PROGRAM], timeout=120, env=env).check()
    assert "FAILED" not in run.stdout, run.stdout
    assert run.stdout.count("OK ") == 28, run.stdout
