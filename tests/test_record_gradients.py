"""scripts/record_gradients.py: what it records is what training computes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SCRIPT = SCRIPTS / "record_gradients.py"


@pytest.fixture
def recorder(monkeypatch):
    """The script as a module, on noise in place of its data sets."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import record_gradients
    import torch

    draw = torch.Generator().manual_seed(0)

    def images(limit=None):
        x, y = torch.randn(300, 1, 28, 28, generator=draw), torch.randint(10, (300,), generator=draw)
        return record_gradients.data.Data(x[:limit], y[:limit], x, y)

    def text(limit=None):
        x = torch.randint(63, (40, 64), generator=draw)
        return record_gradients.data.Data(x[:limit], x[:limit], x, x)

    monkeypatch.setattr(record_gradients.data, "fashion", images)
    monkeypatch.setattr(record_gradients.data, "bible", text)
    return record_gradients


def run(*words):
    command = [sys.executable, str(SCRIPT), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_workers_share_weights_that_go_on_with_their_mean(recorder):
    import torch
    from training import models
    from training.data import batches
    from training.loop import loss_of, optimizer_for, schedule

    data = recorder.data.fashion()
    recorder.data.fashion = lambda limit: data
    found = recorder.record("cnn", [0], workers=2, consecutive=2)
    torch.manual_seed(0)
    model = models.small_net()
    names = [name for name, _ in model.named_parameters()]
    assert set(found) == {"meta"} | {f"step{s}/worker{w}/{n}" for s in (0, 1) for w in (0, 1) for n in names}
    optimizer = optimizer_for(model, "sgd", 0.03 * schedule(0, 1400), 2)
    for name, p in model.named_parameters():
        first, second = (found[f"step0/worker{w}/{name}"] for w in (0, 1))
        assert first.shape == p.shape and first.dtype == np.float32
        assert not np.array_equal(first, second)
        p.grad = torch.from_numpy((first + second) / 2)
    optimizer.step()
    optimizer.zero_grad()
    indices = list(batches(300, 1, 2, 64, seed=0, epoch=0))[1]
    loss_of(model, data.train_x[indices], data.train_y[indices]).backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad, found[f"step1/worker1/{name}"], rtol=1e-2, atol=1e-5)
    about = json.loads(str(found["meta"]))
    assert (about["model"], about["optimizer"], about["batch"], about["seed"]) == ("cnn", "sgd", 64, 0)
    assert set(about["loss_at_step"]) == {"0", "1"}
    assert set(about["versions"]) == {"python", "torch", "numpy"}


def test_text_and_seeds(recorder):
    first, again, other = (recorder.record("text", [0], seed=seed) for seed in (0, 0, 1))
    key = "step0/worker0/blocks.3.qkv.weight"
    assert first[key].shape == (576, 192)
    assert not np.array_equal(first[key], other[key])
    assert list(first) == list(again)


def test_too_little_data_is_refused(recorder):
    with pytest.raises(recorder.UsageError, match="300 samples make no batch of 64 for 5 workers: lower"):
        recorder.record("cnn", [0], workers=5)


def test_a_sample_of_recordings(recorder, tmp_path):
    files = [str(tmp_path / "cnn.npz"), str(tmp_path / "text.npz")]
    for name, file in zip(("cnn", "text"), files):
        assert recorder.main(["--model", name, "--steps", "0", "1", "--workers", "2", "--out", file]) == 0
    out = tmp_path / "sample.npz"
    assert recorder.main(["--sample", *files, "--out", str(out)]) == 0
    with np.load(out) as sample, np.load(files[0]) as whole:
        assert [about["model"] for about in json.loads(str(sample["meta"]))["sample_of"]] == ["cnn", "text"]
        keys = [key for key in sample.files if key != "meta"]
        assert all(key.split("/")[1] == "step0" for key in keys)
        assert all(sample[key].size >= 1024 and sample[key].size % 32 == 0 for key in keys)
        piece, tensor = sample["cnn/step0/worker1/13.weight"], whole["step0/worker1/13.weight"].reshape(-1)
        assert any(np.array_equal(piece, tensor[at : at + piece.size]) for at in range(0, tensor.size, 32))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--steps", "-1"], 2, "--steps [-1]: expected at least 0"),
        (["--workers", "0"], 2, "--workers 0: expected at least 1"),
        (["--sample", str(SCRIPT)], 1, "is no recording of this script"),
        (["--sample", "no/such.npz"], 1, "No such file or directory: 'no/such.npz'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, words, code, said):
    done = run(*words, "--out", tmp_path / "x.npz")
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_folder_is_seen_before_the_training(tmp_path):
    done = run("--out", tmp_path / "no" / "x.npz")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "there is no such folder" in done.stderr
