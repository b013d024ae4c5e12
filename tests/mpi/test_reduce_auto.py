"""The policy auto between ranks; under a link that really changes: ``tests/lab/test_auto.py``."""

from pathlib import Path

import pytest

from mpi_launcher import all_ok, checks_of, mpirun

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("reduce_auto.py")


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 1), (2, 0), (3, 2)])
def test_choices_are_the_same_on_all_ranks(ranks, per_node):
    alone = per_node == 0  # all ranks share a node, so that neither codec nor transport has anything to do
    env = {"GRADFLOW_RANKS_PER_NODE": str(per_node), "GRADFLOW_TRANSPORT": "udp" if alone else "mpi"}
    run = mpirun(ranks, [PROGRAM], timeout=150, env=env)
    all_ok(run, checks_of(PROGRAM))
    for line in run.stderr.splitlines():
        assert "Traceback" not in line, run.stderr
    assert run.stderr.count("Compression.auto for one: ") == 1, run.stderr
    assert run.stderr.count("so no datagrams are sent") == alone, run.stderr
    if alone:
        assert "Compression.auto for one: all ranks are on one node" in run.stderr


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("allow", "ranks [1] sent allow=['none', 'fp16'], expected allow=['none', 'int8']"),
        ("codec", "expected codec log4, "),
    ],
)
def test_ranks_that_disagree_learn_it_before_anything_is_measured(which, words):
    run = mpirun(2, [PROGRAM, which], timeout=60, env={"GRADFLOW_RANKS_PER_NODE": "1"})
    assert run.returncode != 0 and not run.timed_out
    assert "REFUSED" in run.stdout and words in run.stderr, run.stdout + run.stderr
