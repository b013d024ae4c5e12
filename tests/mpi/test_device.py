"""Gradients on a device, emulated, on real ranks: ``reduce_device.py``, and what others pass on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpi_launcher import all_ok, checks_of
from tests.mpi.test_reduce_failures import fail

pytestmark = pytest.mark.mpi
HERE = Path(__file__).parent
VALUES = HERE / "reduce_device.py"
SMALLEST = {"GRADFLOW_WINDOW": "1", "GRADFLOW_CHUNK_KIB": "4"}
EMULATED = {"GRADFLOW_DEVICE": "emulated", "GRADFLOW_RANKS_PER_NODE": "1"}


@pytest.mark.parametrize(
    ("ranks", "per_node"),
    # Three: the home adds in the order of nodes. Nodes of two and of one: the latter encodes on its device.
    [(3, "1"), pytest.param(2, "1", marks=pytest.mark.slow), pytest.param(3, "2", marks=pytest.mark.slow)],
)
def test_the_bits_of_the_host(mpirun, ranks, per_node):
    run = mpirun(ranks, [VALUES], timeout=180, env={"GRADFLOW_RANKS_PER_NODE": per_node})
    all_ok(run, checks_of(VALUES))


def test_the_smallest_settings(mpirun):
    env = {"GRADFLOW_RANKS_PER_NODE": "1", **SMALLEST}
    all_ok(mpirun(2, [VALUES, "nonfinite", "staleness"], timeout=120, env=env), ["nonfinite", "staleness"])


def test_ranks_that_share_a_node(mpirun):
    """Their gradients are copied to the host."""
    names = ["kinds", "streams"]
    run = mpirun(3, [VALUES, *names], timeout=120, env={"GRADFLOW_RANKS_PER_NODE": "2"})
    all_ok(run, names)


def test_torch_in_short(mpirun):
    """Of ``torch_training.py``, what has most to do with where a gradient lies."""
    pytest.importorskip("horovod.torch")
    names = ["every_codec", "shapes_strides_dtypes", "accumulation", "large_values", "residuals_survive"]
    all_ok(mpirun(2, [HERE / "torch_training.py", "dropin", *names], timeout=240, env=EMULATED), names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("torch_training.py", "dropin"),
        ("torch_training.py", "stock"),
        ("torch_stale.py", "dropin"),
        ("torch_deadzone.py", "dropin"),
        ("torch_dropin.py", "dropin"),
    ],
)
def test_torch(mpirun, program, path):
    pytest.importorskip("horovod.torch")
    run = mpirun(2, [HERE / program, path], timeout=240, env=EMULATED)
    imported = checks_of(HERE / "torch_control.py") if program == "torch_dropin.py" else set()
    all_ok(run, checks_of(HERE / program) | imported)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("kill", ""),
        ("stop", "ranks [1] have been silent for 2.0 s"),
        ("late", "ranks [1] have not submitted it for 3 s"),
        ("late and stopped", "tensor 'w': ranks [1] have been silent for 2.0 s"),
        ("elements", "ranks [1] sent 18 elements, expected 17"),
        pytest.param("finalize", "", marks=pytest.mark.slow),
    ],
)
def test_every_wait_ends(case, words):
    assert words in fail(case, 2, env=EMULATED).stdout
