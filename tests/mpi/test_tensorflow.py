"""The TensorFlow and Keras front ends on real ranks: programs with many checks, since a launch is dear."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from mpi_launcher import all_ok, checks_of

pytest.importorskip("horovod.tensorflow")

HERE = Path(__file__).parent
pytestmark = pytest.mark.mpi
APART = {"GRADFLOW_RANKS_PER_NODE": "1"}
PAIRS = {"GRADFLOW_RANKS_PER_NODE": "2"}  # three ranks: nodes of two and of one


# What the two ways do not share.
STOCK = [
    "every_codec",
    "shapes_and_dtypes",
    "none_stays_none",
    "fewer_bytes",
    "a_lossless_stock_path_is_told_what_to_do",
]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("dropin", None),
        pytest.param("stock", STOCK, marks=pytest.mark.slow),
        pytest.param("stock", None, marks=pytest.mark.slow),
    ],
)
def test_tape(mpirun, path, names):
    names = names or sorted(checks_of(HERE / "tf_tape.py"))
    all_ok(mpirun(2, [HERE / "tf_tape.py", path, *names], timeout=280, env=APART), names)


def test_tape_on_a_device(mpirun):
    names = ["what_was_given_and_returned_stays", "shapes_and_dtypes", "not_finite_anywhere"]
    env = {**APART, "GRADFLOW_DEVICE": "emulated"}
    all_ok(mpirun(2, [HERE / "tf_tape.py", "dropin", *names], timeout=200, env=env), names)


@pytest.mark.slow
def test_tape_with_one_thread_for_operations(mpirun):
    """No operation of ours may hold the only thread while another rank waits for one behind it."""
    names = ["two_tapes_in_one_function", "sparse_gradients", "one_large_among_small"]
    run = mpirun(2, [HERE / "tf_tape.py", "dropin", *names], timeout=240, env={**APART, "ONE_THREAD": "1"})
    all_ok(run, names)


@pytest.mark.slow
def test_tape_on_unequal_nodes(mpirun):
    names = ["sparse_gradients", "not_finite_anywhere", "sum_and_predivide"]
    all_ok(mpirun(3, [HERE / "tf_tape.py", "dropin", *names], timeout=240, env=PAIRS), names)


@pytest.mark.parametrize("path", ["dropin", pytest.param("stock", marks=pytest.mark.slow)])
def test_process_sets(mpirun, path):
    all_ok(mpirun(3, [HERE / "tf_sets.py", path], timeout=200, env=APART), checks_of(HERE / "tf_sets.py"))


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_keras(mpirun, half):
    names = sorted(checks_of(HERE / "keras_training.py"))[half::2]
    all_ok(mpirun(2, [HERE / "keras_training.py", *names], timeout=280, env=APART), names)


def test_keras_on_tensorflow(horovodrun):
    names = checks_of(HERE / "keras_on_tensorflow.py") - {"keras_2"}
    run = horovodrun(2, [HERE / "keras_on_tensorflow.py", *sorted(names)], timeout=280, env=APART)
    all_ok(run, names)


def test_keras_2(mpirun):
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf-keras is not installed")
    all_ok(mpirun(2, [HERE / "keras_on_tensorflow.py", "keras_2"], timeout=200, env=APART), ["keras_2"])


def test_keras_on_torch(mpirun):
    names = [
        "accumulated_gradients",
        "local_variables",
        "a_step_that_is_skipped_together",
        "saved_and_loaded",
        "normalized_by_the_optimizers_moments",
        "values",
    ]
    env = {**APART, "KERAS_BACKEND": "torch"}
    all_ok(mpirun(2, [HERE / "keras_training.py", *names], timeout=280, env=env), names)


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("tensorflow", ["the_trajectory_is_that_of_late_gradients", "refused", "tapes"]),
        pytest.param("tensorflow", None, marks=pytest.mark.slow),
        pytest.param(
            "torch", ["the_trajectory_is_that_of_late_gradients", "refused"], marks=pytest.mark.slow
        ),
    ],
)
def test_staleness(mpirun, backend, names):
    names = names or sorted(checks_of(HERE / "keras_stale.py"))
    env = {**APART, "KERAS_BACKEND": backend}
    all_ok(mpirun(2, [HERE / "keras_stale.py", *names], timeout=280, env=env), names)


@pytest.mark.parametrize(
    ("mode", "how", "settings", "sentence"),
    [
        ("other_variables", "eager", {}, r"extra"),
        ("other_size", "graph", {}, r"'w'.*ranks \[1\] .*5018 elements.* 5017"),
        ("other_clipping", "graph", {}, r"'w'.*ranks \[1\] sent clip_norm=1.0, expected clip_norm=None"),
        pytest.param(
            "other_clipping_of_keras",
            "eager",
            {},
            r"ranks \[1\] sent global_clipnorm=2.0, expected global_clipnorm=1.0",
            marks=pytest.mark.slow,
        ),
        ("never", "graph", {"GRADFLOW_SUBMIT_TIMEOUT": "4"}, r"ranks \[1\] have not submitted"),
        pytest.param(
            "stopped",
            "graph",
            {"GRADFLOW_PROGRESS_TIMEOUT": "8"},
            r"weight.*ranks \[1\] .*silent",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "crash", "graph", {}, r"rank 1 ended with RuntimeError: out of data", marks=pytest.mark.slow
        ),
        ("not_initialised", "graph", {}, r"Horovod is not initialised: call hvd.init\(\) first"),
    ],
)
def test_ends_in_an_error(mpirun, mode, how, settings, sentence):
    run = mpirun(2, [HERE / "tf_faults.py", mode, how], timeout=120, env={**APART, **settings})
    assert run.returncode != 0 and not run.timed_out, run.stdout + run.stderr
    assert re.search(sentence, run.stderr), run.stderr


@pytest.mark.parametrize("program", ["keras_callbacks.py", "keras_elastic.py", "keras_layers.py"])
def test_callbacks_states_and_layers(mpirun, program):
    all_ok(mpirun(2, [HERE / program], timeout=280, env=APART), checks_of(HERE / program))


@pytest.mark.slow
def test_callbacks_on_torch(mpirun):
    names = ["broadcast_after_first_batch", "local_variables_stay", "metrics_are_averaged", "warmup"]
    env = {**APART, "KERAS_BACKEND": "torch"}
    all_ok(mpirun(2, [HERE / "keras_callbacks.py", *names], timeout=280, env=env), names)
