"""The reducer's values on 1 to 4 ranks, in one node and in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi_launcher import all_ok, checks_of, mpirun

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("reduce_values.py")
LAYOUTS = {  # ranks, ranks per node: nodes
    (1, 0): "[[0]]",
    (2, 0): "[[0, 1]]",
    (2, 1): "[[0], [1]]",
    (3, 1): "[[0], [1], [2]]",
    (3, 2): "[[0, 1], [2]]",
    (4, 2): "[[0, 1], [2, 3]]",
}


@pytest.mark.parametrize(("ranks", "per_node"), LAYOUTS)
def test_values(ranks, per_node):
    env = {"GRADFLOW_RANKS_PER_NODE": str(per_node)}
    run = mpirun(ranks, [PROGRAM], timeout=150, env=env).check()
    assert f"nodes {LAYOUTS[ranks, per_node]}" in run.stdout
    assert "FAILED" not in run.stdout, run.stdout
    assert run.stdout.count("OK ") == 49


SMALLEST = {"GRADFLOW_WINDOW": "1", "GRADFLOW_SHM_SLOTS": "2", "GRADFLOW_CHUNK_KIB": "4"}


@pytest.mark.parametrize(
    ("ranks", "per_node", "settings"),
    [
        (3, 2, SMALLEST),
        (3, 2, {"GRADFLOW_TRANSPORT": "udp"}),
        pytest.param(2, 1, {"GRADFLOW_BACKEND": "numpy"}, marks=pytest.mark.slow),
    ],
)
def test_values_under_other_settings(ranks, per_node, settings):
    """The smallest windows, datagrams between the nodes, and codecs called back in Python."""
    env = {"GRADFLOW_RANKS_PER_NODE": str(per_node), **settings}
    run = mpirun(ranks, [PROGRAM], timeout=250, env=env).check()
    assert "FAILED" not in run.stdout, run.stdout
    assert run.stdout.count("OK ") == 49


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 1), (3, 2)])
def test_steps_under_way(ranks, per_node):
    program = PROGRAM.with_name("reduce_stale.py")
    run = mpirun(ranks, [program], timeout=150, env={"GRADFLOW_RANKS_PER_NODE": str(per_node)})
    all_ok(run, checks_of(program))


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 0), (2, 0), (2, 1), (3, 2), (4, 2)])
def test_streams(ranks, per_node):
    program = PROGRAM.with_name("reduce_streams.py")
    env = {"GRADFLOW_RANKS_PER_NODE": str(per_node)}
    run = mpirun(ranks, [program], timeout=150, env=env).check()
    assert "FAILED" not in run.stdout, run.stdout
    assert run.stdout.count("OK ") == 38
