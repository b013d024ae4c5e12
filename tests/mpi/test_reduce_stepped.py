"""deadzone in the engine on 2 to 4 ranks, in nodes of one and of two: ``reduce_stepped*.py``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mpi_launcher import mpirun

pytestmark = pytest.mark.mpi
VALUES = Path(__file__).with_name("reduce_stepped.py")
STREAMS = Path(__file__).with_name("reduce_stepped_streams.py")
SMALLEST = {"GRADFLOW_WINDOW": "1", "GRADFLOW_SHM_SLOTS": "2", "GRADFLOW_CHUNK_KIB": "4"}


def well(
    program: Path, ranks: int, per_node: int, *parts: str, checks: int, timeout: float = 120, **env: str
):
    settings = {"GRADFLOW_RANKS_PER_NODE": str(per_node), **env}
    run = mpirun(ranks, [program, *parts], timeout=timeout, env=settings).check()
    assert "FAILED" not in run.stdout, run.stdout
    assert run.stdout.count("OK ") == checks, run.stdout
    return run


@pytest.mark.parametrize(
    ("ranks", "per_node"), [(2, 1), pytest.param(3, 1, marks=pytest.mark.slow), (3, 2), (4, 2)]
)
def test_values(ranks, per_node):
    well(VALUES, ranks, per_node, checks=39)


def test_values_under_the_smallest_settings():
    parts = ("lengths", "exactly", "agreed_names", "nonfinite")
    well(VALUES, 3, 2, *parts, checks=22, **SMALLEST)


@pytest.mark.slow
def test_backends_give_the_same_bits():
    bits = set()
    for backend in ("cpu", "numpy"):
        run = well(VALUES, 3, 1, "backends", checks=1, GRADFLOW_BACKEND=backend)
        bits.update(re.findall(r"BITS \w+", run.stdout))
    assert len(bits) == 1


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 1), pytest.param(3, 1, marks=pytest.mark.slow), (3, 2)])
def test_streams(ranks, per_node):
    well(STREAMS, ranks, per_node, checks=39)


def test_more_tensors_than_a_message_has_energies_for():
    settings = {"GRADFLOW_MIN_ELEMENTS": "0", "GRADFLOW_CHUNK_KIB": "1024"}
    well(STREAMS, 2, 1, "many_tensors", checks=1, **settings)


def test_an_empty_tensor_among_others_and_a_lone_spike():
    well(STREAMS, 2, 1, "empty_among_others", "spike", checks=2, GRADFLOW_MIN_ELEMENTS="0")
