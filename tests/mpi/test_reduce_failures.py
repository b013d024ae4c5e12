"""Every wait ends: in an error that names tensor and ranks, and in an exit code that is not 0."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.mpi_launcher import mpirun

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("reduce_failures.py")
SOON = {"GRADFLOW_PROGRESS_TIMEOUT": "2", "GRADFLOW_SUBMIT_WARN": "1", "GRADFLOW_SUBMIT_TIMEOUT": "3"}


def fail(case: str, ranks: int = 2, *, within: float = 30, env=None):
    begin = time.monotonic()
    run = mpirun(ranks, [PROGRAM, case], timeout=60, env={**SOON, **(env or {})})
    assert not run.timed_out, f"{case} hangs\n{run.stdout}\n{run.stderr}"
    assert time.monotonic() - begin < within
    assert run.returncode != 0, f"{case} ended with 0\n{run.stdout}\n{run.stderr}"
    return run


@pytest.mark.parametrize("per_node", ["0", "1"])
def test_other_number_of_elements(per_node):
    run = fail("elements", 3, env={"GRADFLOW_RANKS_PER_NODE": per_node})
    for rank in range(3):
        assert (
            f"RANK {rank} MismatchError: tensor 'fc1.weight', step 0: ranks [2] sent 18 elements, expected 17"
            in run.stdout
        )


@pytest.mark.parametrize(
    ("case", "words"), [("codec", "sent codec int4, expected codec int8"), ("op", "op or other factors")]
)
def test_other_codec_or_op(case, words):
    run = fail(case, 3)
    assert "MismatchError: tensor 'w', step 0: ranks [2] sent" in run.stdout
    assert words in run.stdout


def test_other_plan_is_named_before_data_moves():
    run = fail("plan", 3)
    assert "tensor 'b', step 0: ranks [2] sent shape [2000, 2], expected shape [4000]" in run.stdout


def test_other_staleness_is_named():
    words = "tensor 'w', step 0: ranks [2] sent max_staleness=2, expected max_staleness=1"
    assert words in fail("staleness", 3).stdout


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("clipping", "sent clip_grad_norm=1.0, expected clip_grad_norm=None"),
        ("in place", "sent in_place=True, expected in_place=False"),
        (
            "guards",
            "sent compression.codec.step=2.0, window=10, expected compression.codec.step=1.0, window=20",
        ),
    ],
)
def test_of_long_descriptions_what_differs_is_told(case, words):
    assert f"tensor 'w', step 0: ranks [1] {words}\n" in fail(case, 2).stdout


def test_queued_versions_end_in_the_error_too():
    assert fail("versions").stdout.count("RANK 0 PeerError") == 4


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("moments", "step 0: ranks [2] divide it by other second moments: the optimizers' states"),
        ("moments of one", "step 0: ranks [2] divide it by second moments, which the others have not"),
        ("moments later", "step 1: ranks [2] divide it by other second moments: the optimizers' states"),
    ],
)
def test_other_second_moments(case, words):
    # On one node nothing is encoded, nor divided.
    assert words in fail(case, 3, env={"GRADFLOW_RANKS_PER_NODE": "1"}).stdout


def test_missing_rank_is_warned_about_and_then_named():
    run = fail("missing", 3)
    assert "ranks [2] have not submitted it for 1 s" in run.stderr
    assert "PeerError: tensor 'w', step 0: ranks [2] have not submitted it for 3 s" in run.stdout


def test_same_name_twice_is_refused_at_the_second_call():
    run = mpirun(2, [PROGRAM, "twice"], timeout=60, env=SOON).check()
    assert "GradflowError: tensor 'w' is already under way (step 0)" in run.stdout


@pytest.mark.parametrize("case", ["leaves", "sysexit"])
def test_rank_that_has_ended(case):
    run = fail(case, 3)
    assert "PeerError: tensor 'w', step 0: ranks [2] have ended without submitting it" in run.stdout


def test_exception_of_one_rank_reaches_the_others():
    run = fail("raises", 3)
    assert "rank 2 ended with RuntimeError: out of cheese" in run.stdout
    assert "out of cheese" in run.stderr


@pytest.mark.parametrize("case", ["exit0", "kill"])
@pytest.mark.parametrize("per_node", ["0", "1"])
def test_rank_that_dies_in_the_middle(case, per_node):
    fail(case, 2, env={"GRADFLOW_RANKS_PER_NODE": per_node})


@pytest.mark.parametrize("per_node", ["0", "1"])
def test_stopped_rank_is_named_and_the_job_ends(per_node):
    run = fail("stop", 3, env={"GRADFLOW_RANKS_PER_NODE": per_node})
    assert "ranks [2] have been silent for 2.0 s" in run.stdout


@pytest.mark.parametrize("case", ["kill", "stop"])
def test_a_rank_that_datagrams_do_not_reach_any_more(case):
    run = fail(case, 3, env={"GRADFLOW_RANKS_PER_NODE": "1", "GRADFLOW_TRANSPORT": "udp"})
    if case == "stop":
        assert "ranks [2] have been silent for 2.0 s" in run.stdout


def test_caught_error_does_not_end_in_exit_code_0():
    assert "caught" in fail("caught").stdout


def test_configuration_must_be_equal():
    run = fail("configuration", 3)
    assert "MismatchError: setting window: ranks [2] have 3, the others 4" in run.stdout


@pytest.mark.parametrize("case", ["fine", "early", "versions closed"])
def test_peaceful_end(case):
    run = mpirun(3, [PROGRAM, case], timeout=60, env=SOON).check()
    assert run.stdout.count("fine") == 3


def test_nobody_leaves_while_others_have_work_that_nobody_waits_for():
    env = {**SOON, "GRADFLOW_RANKS_PER_NODE": "1", "GRADFLOW_BACKEND": "numpy"}
    assert "RANK 1 fine" in mpirun(2, [PROGRAM, "unattended"], timeout=60, env=env).check().stdout


def test_shared_memory_that_is_too_small(tmp_path):
    """A directory that cannot hold the file: a warning, and each rank is its own node."""
    missing = tmp_path / "nowhere"
    program = PROGRAM.with_name("reduce_values.py")
    run = mpirun(2, [program], timeout=120, env={"GRADFLOW_SHM_DIR": str(missing)}).check()
    assert "ranks [0, 1] cannot share memory" in run.stderr
    assert "nodes [[0], [1]]" in run.stdout
    assert "FAILED" not in run.stdout


def test_mpi_finalized_under_the_engine():
    run = mpirun(2, [PROGRAM.with_name("reduce_finalize.py")], timeout=60, env=SOON).check()
    assert run.stdout.count("refused: tensor 'w': the engine has ended") == 2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("join", "PeerError: join: ranks [2] have ended without joining"),
        ("join-living", "PeerError: join: ranks [2] have neither joined nor submitted anything for 3 s"),
        ("set", "PeerError: setting up the reducer of ranks [0, 2]: ranks [2] did not take part within 3 s"),
        ("finalize", "the engine has ended, since MPI was finalized"),
    ],
)
def test_waits_outside_of_a_reduction_end_too(case, words):
    # On one node nothing is encoded, nor divided.
    assert words in fail(case, 3, env={"GRADFLOW_RANKS_PER_NODE": "1"}).stdout


def test_a_forked_child_is_refused_and_ends():
    run = mpirun(2, [PROGRAM, "fork"], timeout=60, env=SOON).check()
    assert run.stdout.count("CHILD this process was forked") == 2
    assert run.stdout.count("fine") == 2


def test_a_busy_interpreter_is_not_a_silent_rank():
    env = {**SOON, "GRADFLOW_SUBMIT_TIMEOUT": "30"}
    assert mpirun(2, [PROGRAM, "busy"], timeout=60, env=env).check().stdout.count("fine") == 2
