"""The torch front end on real ranks: ``torch_*.py``, each with many checks, since a launch is dear.

``GRADFLOW_RANKS_PER_NODE=1`` makes every rank a node of its own, so that what is exchanged is encoded.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpi_launcher import all_ok, checks_of

pytest.importorskip("horovod.torch")

HERE = Path(__file__).parent
pytestmark = pytest.mark.mpi
APART = {"GRADFLOW_RANKS_PER_NODE": "1"}
PAIRS = {"GRADFLOW_RANKS_PER_NODE": "2"}  # three ranks: nodes of two and of one


@pytest.mark.parametrize("path", ["dropin", "stock"])
def test_training(mpirun, path):
    run = mpirun(2, [HERE / "torch_training.py", path], timeout=240, env=APART)
    all_ok(run, checks_of(HERE / "torch_training.py"))


@pytest.mark.parametrize("path", ["dropin", pytest.param("stock", marks=pytest.mark.slow)])
def test_training_on_unequal_nodes(mpirun, path):
    names = [
        "every_codec",
        "shapes_strides_dtypes",
        "frozen_and_unused",
        "sum_predivide_groups",
        "large_values",
    ]
    run = mpirun(3, [HERE / "torch_training.py", path, *names], timeout=240, env=PAIRS)
    all_ok(run, names)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["dropin", "stock"])
def test_training_in_one_node(mpirun, path):
    names = [
        "shapes_strides_dtypes",
        "gradient_scaler",
        "residuals_survive",
        "adam_and_broadcast",
        "fewer_bytes",
    ]
    all_ok(mpirun(3, [HERE / "torch_training.py", path, *names], timeout=240), names)


@pytest.mark.parametrize(("ranks", "path", "nodes"), [(3, "dropin", PAIRS), (2, "stock", APART)])
def test_deadzone(mpirun, ranks, path, nodes):
    run = mpirun(ranks, [HERE / "torch_deadzone.py", path], timeout=240, env=nodes)
    all_ok(run, checks_of(HERE / "torch_deadzone.py"))


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_dropin(mpirun, ranks):
    run = mpirun(ranks, [HERE / "torch_dropin.py", "dropin"], timeout=240, env=APART)
    all_ok(run, checks_of(HERE / "torch_dropin.py") | checks_of(HERE / "torch_control.py"))


def test_staleness(mpirun):
    run = mpirun(2, [HERE / "torch_stale.py", "dropin"], timeout=240, env=APART)
    all_ok(run, checks_of(HERE / "torch_stale.py"))
    # Each rank's checks leave steps under way: told once at the end.
    assert run.stderr.count("the optimizer or the program ended while the gradients of") == 2, run.stderr


def test_large_gradients_stay_where_they_are(mpirun):
    run = mpirun(2, [HERE / "torch_large.py", "dropin"], timeout=120, env=APART)
    all_ok(run, checks_of(HERE / "torch_large.py"))


@pytest.mark.slow
def test_stock_under_horovodrun(horovodrun):
    run = horovodrun(3, [HERE / "torch_stock.py", "stock"], timeout=240, env=APART)
    all_ok(run, checks_of(HERE / "torch_stock.py"))


def test_mpi_does_not_end_under_a_rank_that_still_closes(mpirun):
    run = mpirun(2, [HERE / "torch_shutdown.py"], timeout=60, env=APART)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("ended") == 2


@pytest.mark.parametrize("path", ["dropin", pytest.param("stock", marks=pytest.mark.slow)])
def test_process_sets(mpirun, path):
    run = mpirun(3, [HERE / "torch_sets.py", path], timeout=240, env=APART)
    all_ok(run, checks_of(HERE / "torch_sets.py"))


@pytest.mark.parametrize(
    ("mode", "path", "settings", "sentence"),
    [
        (["other_size"], "dropin", {}, r"'w'.*ranks \[1\] .*18 elements.* 17"),
        (["other_size", "5000"], "dropin", {}, r"'w'.*ranks \[1\] .*5018 elements.* 5017"),
        (["other_size", "5000"], "stock", {}, r"'w'.*ranks \[1\] .*5018 elements.* 5017"),
        (["other_order"], "dropin", {}, r"'weight'.*ranks \[1\] .*2048 elements.* 4096"),
        (
            ["other_clipping"],
            "dropin",
            {},
            r"ranks \[1\] sent clip_grad_norm=2.0, expected clip_grad_norm=1.0",
        ),
        (["other_transport"], "dropin", {}, r"'optimizer2 by transport='udp', .* ranks \[1\] sent it where"),
        (["never"], "dropin", {"GRADFLOW_SUBMIT_TIMEOUT": "3"}, r"ranks \[1\] have not submitted"),
        (["stopped"], "stock", {"GRADFLOW_PROGRESS_TIMEOUT": "8"}, r"weight.*ranks \[1\] .*silent"),
        (["ended"], "dropin", {}, r"PeerError: MPI was finalized: another rank has ended"),
        (["crash"], "dropin", {}, r"rank 1 ended with RuntimeError: out of data"),
        (["join_bound"], "stock", {}, r"'weight', sequence 1.*ranks \[1\] took no part.*join"),
    ],
)
def test_ends_in_an_error(mpirun, mode, path, settings, sentence):
    run = mpirun(
        2, [HERE / "torch_faults.py", mode[0], path, *mode[1:]], timeout=120, env={**APART, **settings}
    )
    assert run.returncode != 0 and not run.timed_out, run.stdout + run.stderr
    assert re.search(sentence, run.stderr), run.stderr


def test_mpi_without_threads_is_refused(mpirun):
    run = mpirun(
        1, [HERE / "torch_faults.py", "cannot_carry", "dropin"], env={"HOROVOD_MPI_THREADS_DISABLE": "1"}
    )
    run.check()
    assert "OK" in run.stdout and run.stdout.count("REFUSED") == 2
    assert "Compression.int8: compressed gradients need MPI_THREAD_MULTIPLE" in run.stdout


def test_gloo_is_refused(mpirun):
    ranks = {f"HOROVOD_{kind}{what}": str(value) for kind in ("", "LOCAL_", "CROSS_") for what, value in
             (("RANK", 0), ("SIZE", 1))}  # fmt: skip
    env = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", **ranks}
    run = mpirun(1, [HERE / "torch_faults.py", "cannot_carry", "dropin"], env=env)
    run.check()
    assert "OK" in run.stdout and run.stdout.count("REFUSED") == 2
    assert "this job runs under Gloo: start it with mpirun" in run.stdout
