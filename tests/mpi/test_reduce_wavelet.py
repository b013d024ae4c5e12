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


def test_a_deadline_on_a_device():
    """What comes too late is owed there. Values are those of the host: ``reduce_device.py``."""
    env = {"GRADFLOW_RANKS_PER_NODE": "1", "GRADFLOW_DEVICE": "emulated", **SMALLEST}
    env["GRADFLOW_CHUNK_KIB"] = "16"
    run = mpirun(2, [PROGRAM, "deadline"], timeout=120, env=env).check()
    assert "FAILED" not in run.stdout, run.stdout
    assert run.stdout.count("OK ") == 6, run.stdout
