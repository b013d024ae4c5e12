"""Recording without a launcher (one rank in this process), and reading back what was written."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random

import numpy as np
import pytest

from hvd_gradflow import config, events
from hvd_gradflow.analyze import npz, recording
from hvd_gradflow.analyze.quality import examined
from hvd_gradflow.analyze.record import ALWAYS, Recorder, start
from hvd_gradflow.analyze.report import analyze, as_text
from hvd_gradflow.analyze.schedule import wanted
from hvd_gradflow.config import Config
from hvd_gradflow.errors import ConfigError
from hvd_gradflow.reduce import Reducer, TensorSpec

SPECS = (TensorSpec("w", (64, 32), "float32", "dense"), TensorSpec("b", (7,), "bfloat16", "vector"))


@pytest.fixture
def reducer():
    from mpi4py import MPI

    with Reducer(MPI.COMM_SELF, config=Config()) as made:
        yield made


@pytest.fixture
def warnings():
    """What is warned of."""
    told: list[str] = []
    end = events.subscribe(lambda kind, fields: told.append(fields["message"]) if kind == "warning" else None)
    yield told
    end()


def gradients(step):
    rng = np.random.default_rng(step)
    bits = np.array([0x3F80, 0xBF80, 0x4000, 0, 0, 0, 0], np.uint16)  # 1, -1, 2 and zeros
    return {"w": rng.standard_normal((64, 32)).astype(np.float32), "b": bits}


def train(reducer, recorder, steps, op="average"):
    reducer.recorder = recorder
    stream = reducer.stream(SPECS, "none", op=op)
    torch = pytest.importorskip("torch")
    for step in range(steps):
        given = gradients(step)
        given["b"] = torch.from_numpy(given["b"].view(np.int16)).view(torch.bfloat16)
        handles = [stream.submit(name, given[name]) for name in ("b", "w")]
        for handle in handles:
            handle.wait()
    stream.close()


def test_which_steps_are_sampled():
    samples = [s for s in range(200_000) if wanted(s, 25)[0]]
    assert samples[:64] == list(range(0, 1600, 25))
    assert samples[64:96] == list(range(1600, 3200, 50))
    assert len(samples) == 256
    assert [s for s in range(60) if wanted(s, 25)[1]] == [1, 26, 51]
    assert all(wanted(s, 1)[0] for s in range(64))


def test_what_is_written_is_read_back(reducer, tmp_path):
    recorder = Recorder(str(tmp_path / "new" / "out"), 2, 0, 65536)
    train(reducer, recorder, 5)
    recorder.close()
    (stream,), remarks = recording.read(str(tmp_path / "new" / "out"))
    assert remarks == []
    assert [(x.name, x.shape, x.kind, x.elements) for x in stream.layers] == [
        ("w", (64, 32), "dense", 2048),
        ("b", (7,), "vector", 7),
    ]
    assert (
        sorted(stream.statistics) == [0, 2, 4][: len(stream.statistics)] and len(stream.statistics) >= ALWAYS
    )
    assert stream.statistics[2]["b"]["rms"] == pytest.approx(np.sqrt(6 / 7))  # bfloat16 is understood
    assert stream.statistics[2]["w"]["codec"] == "none"
    w = {step: gradients(step)["w"].ravel().astype(np.float64) for step in range(5)}
    expected = w[2] @ w[3] / np.sqrt((w[2] @ w[2]) * (w[3] @ w[3]))
    assert stream.cosines[3]["w"] == pytest.approx(expected)
    assert stream.local[3][0] == pytest.approx([w[3] @ w[3], 6.0])
    assert stream.reduced[3] == pytest.approx([w[3] @ w[3], 6.0])  # one rank: its own


def test_a_run_that_was_killed_and_damage(reducer, tmp_path):
    for _ in range(2):
        recorder = Recorder(str(tmp_path), 2, 0, 65536)
        train(reducer, recorder, 3)
        recorder.close()
    file = tmp_path / "rank0.jsonl"
    whole = file.read_bytes()
    # Wherever it was cut off, what was complete before counts, and nothing is raised but "nothing yet".
    for length in range(len(whole) - 1, len(whole) // 2, -997):
        file.write_bytes(whole[:length])
        streams, remarks = recording.read(str(tmp_path))
        assert streams and any("2 runs" in r or "cut off" in r for r in remarks)
    lines = whole.decode().splitlines()
    short = '{"kind": "layers", "stream": 0, "step": 0'
    lines[3:3] = ["{", "[]", "null", "\x00\xff", '{"kind": "norms"}', short + "}"]
    lines.append(short + ', "layers": {"w": {"rms": 1}}}')
    file.write_text("\n".join(lines))
    streams, remarks = recording.read(str(tmp_path))
    assert streams and any("4 line(s) cut off or damaged" in remark for remark in remarks)


def places(value, at=()):
    """Where something stands in a line."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list) and value:
        for i in {0, len(value) - 1}:
            yield from places(value[i], (*at, i))


def test_values_that_are_none(reducer, tmp_path):
    """Whatever stands in a place where something else should, it is read, passed over or refused."""
    recorder = Recorder(str(tmp_path), 2, 0, 65536)
    train(reducer, recorder, 3)
    recorder.close()
    file, rng = tmp_path / "rank0.jsonl", random.Random(0)
    lines = [json.loads(line) for line in file.read_text().splitlines() if line]
    values = [None, "x", -1, 0, 1e308, math.inf, math.nan, [], {}, True, 2**70]
    for i, line in enumerate(lines):
        for at in list(places(line))[1:]:
            for value in rng.sample(values, 2):
                changed = copy.deepcopy(line)
                inner = changed
                for key in at[:-1]:
                    inner = inner[key]
                inner[at[-1]] = value
                text = [json.dumps(changed if j == i else other) for j, other in enumerate(lines)]
                file.write_text("\n".join(text))
                with contextlib.suppress(ConfigError):
                    as_text(analyze(str(tmp_path)))


def test_another_version_is_refused(tmp_path):
    (tmp_path / "rank0.jsonl").write_text(json.dumps({"kind": "run", "version": 99, "started": 0.0}))
    with pytest.raises(ConfigError, match="version 99 of the format, expected 1"):
        recording.read(str(tmp_path))


def test_an_empty_directory_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="set GRADFLOW_ANALYZE="):
        recording.read(str(tmp_path))
    (tmp_path / "rank0.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no run has written anything yet"):
        recording.read(str(tmp_path))


@pytest.mark.parametrize("what", ["a file is there", "the disk is full"])
def test_what_cannot_be_written_is_one_warning(reducer, tmp_path, warnings, what):
    path = tmp_path / "out"
    if what == "a file is there":
        path.write_text("mine")
        assert start(str(path), 1, 256) is None
        recorder = None
    else:
        path.mkdir()
        (path / "rank0.jsonl").symlink_to("/dev/full")
        recorder = start(str(path), 1, 256)
    train(reducer, recorder, 3)
    assert len(warnings) == 1, warnings
    assert "not recorded in" in warnings[0] and "the training goes on" in warnings[0]


def test_a_fault_within_does_not_reach_the_training(reducer, tmp_path, warnings, monkeypatch):
    recorder = Recorder(str(tmp_path), 1, 0, 65536)

    def breaks(*_):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("hvd_gradflow.analyze.record.energy", breaks)
    train(reducer, recorder, 3)
    assert len(warnings) == 1 and "of all things" in warnings[0]


def test_what_there_is_nothing_to_say_of():
    assert examined(np.zeros(9, np.float32), [], 65536) == {"reason": "zero"}
    assert examined(np.array([1, np.nan], np.float32), [], 65536) == {"reason": "not finite"}


def test_workers_of_a_recording_are_ranks(tmp_path):
    rng = np.random.default_rng(0)
    common = rng.standard_normal((40, 50))
    arrays = {
        f"step{step}/worker{k}/fc.weight": (common + rng.standard_normal((40, 50))).astype(np.float32)
        for step in (7, 8)
        for k in range(4)
    }
    meta = {"model": "cnn", "optimizer": "adamw"}
    np.savez(tmp_path / "x.npz", **arrays, meta=np.array(json.dumps(meta)))
    (stream,), remarks = npz.read(str(tmp_path / "x.npz"))
    assert (stream.scope, stream.ranks, stream.importance, remarks) == ("cnn", 4, "coordinate", [])
    assert (stream.layers[0].kind, stream.layers[0].shape) == ("dense", (40, 50))
    assert stream.cosines[8]["fc.weight"] == pytest.approx(0.5, abs=0.05)
    assert set(stream.local[7]) == {0, 1, 2, 3} and len(stream.reduced) == 2


def test_settings():
    found = config.load({"GRADFLOW_ANALYZE": "out", "GRADFLOW_ANALYZE_EVERY": "7"})
    assert (found.analyze, found.analyze_every) == ("out", 7)
    with pytest.raises(ConfigError, match="GRADFLOW_ANALYZE_EVERY=0: expected a finite number of at least 1"):
        config.load({"GRADFLOW_ANALYZE_EVERY": "0"})
