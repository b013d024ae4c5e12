"""From a recording to sentences, tables and pictures."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from hvd_gradflow import cli
from hvd_gradflow.analyze import npz
from hvd_gradflow.analyze.advice import LOST, advise, prediction_gain, wavelet_gain
from hvd_gradflow.analyze.plots import PLOTS
from hvd_gradflow.analyze.quality import candidates, examined
from hvd_gradflow.analyze.report import as_text, table
from hvd_gradflow.analyze.statistics import WHITE
from hvd_gradflow.analyze.summary import smallest, summarize
from hvd_gradflow.codec import registry

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "gradients.npz"


@pytest.fixture
def record(tmp_path):
    """Write a recording of two workers and return what it comes to."""

    def made(arrays, optimizer="sgd", steps=(0, 1), noise=0.5, min_elements=1024):
        rng = np.random.default_rng(99)
        keyed = {
            f"step{s}/worker{k}/{name}": (
                x * (1 + 0.01 * s) + noise * np.sqrt((x**2).mean()) * rng.standard_normal(x.shape) * (x != 0)
            ).astype(np.float32)
            for s in steps
            for k in (0, 1)
            for name, x in arrays.items()
        }
        file = tmp_path / "x.npz"
        np.savez(file, **keyed, meta=np.array(json.dumps({"model": "m", "optimizer": optimizer})))
        (stream,), _ = npz.read(str(file))
        return summarize(stream, min_elements)

    return made


def white(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def said(summary):
    return "\n".join(advise(summary))


def test_gains_in_closed_form():
    assert wavelet_gain(list(WHITE)) == pytest.approx(0.0, abs=1e-12)
    # All energy in an eighth of the elements: as many bits for each of these as otherwise for all.
    assert wavelet_gain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(7 / 8)
    assert wavelet_gain(None) == 0.0
    assert prediction_gain(0.0) == pytest.approx(0.0)
    assert prediction_gain(0.999) == pytest.approx(1.0)
    assert prediction_gain(0.5) == pytest.approx(1 - math.log2(0.75 / LOST) / math.log2(1 / LOST))


def test_white_noise_has_nothing_to_gain(record):
    text = said(record({"fc.weight": white(64, 64), "fc.bias": white(10)}))
    assert "no kind of layer gains more than" in text
    assert "Small tensors: 1 of 2 are below GRADFLOW_MIN_ELEMENTS=1024" in text
    assert "deadzone is the smallest that keeps a cosine of 0.985" in text
    assert "Samples: 2 only" in text


def test_of_codecs_that_are_as_small_the_simplest_is_named(record):
    found = record({"fc.weight": white(64, 64)})
    model = found["model"]
    by_name = {n: model["codecs"]["deadzone"] for n in ("deadzone", "wavelet", "deadzone:similarity=0.99")}
    for factor, best, alike in ((0.993, "deadzone", ["wavelet"]), (0.97, "wavelet", [])):
        codecs = {n: dict(c) for n, c in by_name.items()}
        codecs["wavelet"]["bytes"] *= factor
        codecs["deadzone:similarity=0.99"]["bytes"] *= 1.5
        codecs["log4"] = {**codecs["deadzone"], "bytes": 9.0}
        layer = {"bytes": 1.0, "error": 0.1}
        assert smallest({n: {**layer, **c} for n, c in codecs.items()}, fixed=False) == best
        text = said({**found, "model": {**model, "codecs": codecs, "smallest": best, "alike": alike}})
        assert f"Compression.{best} is the {'simplest of the ' if alike else ''}smallest that keep" in text
        assert ("Compression.wavelet (0.7 % fewer bytes)" in text) == bool(alike)


def test_what_is_named_can_be_written_in_a_script(record):
    rare = white(200, 64) * (np.arange(200) % 20 == 0)[:, None]
    found = record({"embedding.weight": rare, "fc.weight": white(64, 64)})
    for one in (*found["rows"], found["model"]):
        one["smallest"] = "deadzone:similarity=0.95"
    text = as_text({"remarks": [], "streams": [{**found, "advice": advise(found)}]})
    assert "deadzone:" not in text
    assert "Compression.deadzone(similarity=0.9) " in text  # in the table of codecs
    assert sum(line.endswith("  Compression.deadzone(similarity=0.95)") for line in text.splitlines()) == 2
    assert "For the model: Compression.deadzone(similarity=0.95) is" in " ".join(text.split())


def test_low_rank_is_measured_on_matrices(record):
    x = np.outer(white(64, seed=1), white(96, seed=2))
    rows = record({"fc.weight": x, "conv.weight": x.reshape(64, 4, 4, 6), "v": white(4096)}, noise=0.0)[
        "rows"
    ]
    for row in rows[:2]:
        seen = row["codecs"]["powersgd"]
        assert seen["error"] < 1e-5  # one column and one row are all there is
        assert 4 * (64 + 96) <= seen["bytes"] * x.size <= 4 * (64 + 96) + 100
    assert rows[2]["codecs"]["powersgd"]["bytes"] >= 4  # a vector stays as it is
    part = examined(x.reshape(-1).astype(np.float32), candidates(), 65536)
    assert "powersgd" not in part["codecs"] and "int8" in part["codecs"]


def test_each_codec_has_a_color_of_its_own(record):
    pytest.importorskip("matplotlib")
    figure = dict(PLOTS)["codecs"](record({"fc.weight": white(64, 64)}))
    handles, names = figure.axes[0].get_legend_handles_labels()
    assert set(names) == set(registry.names()) - {"none"}
    assert len({handle.get_color() for handle in handles}) == len(names)
    assert len({handle.get_marker() for handle in handles}) == len(names)


def test_smooth_layers_are_told_of(record):
    smooth = np.repeat(white(16, 16, 1), 16, axis=2)
    text = said(record({"conv.weight": smooth.reshape(64, 4, 4, 4), "fc.weight": white(64, 64)}))
    assert "Conv layers (1):" in text and "a wavelet may save up to" in text
    assert "Dense layers" not in text


def test_a_layer_that_differs_is_named_with_its_reason(record):
    rare = white(200, 64) * (np.arange(200) % 20 == 0)[:, None]
    text = said(record({"embedding.weight": rare, "fc.weight": white(128, 128)}))
    assert "embedding.weight (dense, 12800 elements): Compression.deadzone takes" in text
    assert "95 % of it are exactly zero" in text


def test_adam_is_told_of_its_domain(record):
    text = said(record({"fc.weight": white(64, 64)}, optimizer="adamw"))
    assert "deadzone(domain='normalized')" in text and "among those with a fixed layout" in text


def test_the_noise_scale_and_successive_steps(record):
    # Noise of half the size has a quarter of the energy: a quarter of a batch; 1 / 1.25 from step to step.
    found = record({"fc.weight": white(128, 128)}, steps=range(4))
    assert found["model"]["noise_scale"] == pytest.approx(0.25, rel=0.1)
    assert found["model"]["next_cosine"] == pytest.approx(0.8, abs=0.02)
    assert "Successive steps have a cosine of 0.80" in said(found)
    assert "More ranks will not make it much better" in said(found)
    found["model"]["next_cosine"] = -0.4
    assert "each undoes a part of the one before" in said(found)


def test_nothing_to_compress(record):
    assert said(record({"b": white(10)})).startswith("Every tensor has fewer than GRADFLOW_MIN_ELEMENTS=1024")
    assert "zero or not finite" in said(record({"w": np.zeros((64, 64))}))


def test_numbers_stand_below_their_heads():
    assert table(["name", "n"], [["a", "1"], ["bb", "100"]]) == ["name    n", "a       1", "bb    100"]


def test_the_command_writes_all_three(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, plots = tmp_path / "x.json", tmp_path / "new" / "plots"
    assert cli.main(["analyze", str(SAMPLE), "--json", str(file), "--plots", str(plots)]) == 0
    out = capsys.readouterr().out
    assert "note: " in out and "For the model: " in out and "13.weight" in out
    found = json.loads(file.read_text())
    assert as_text(found) in out
    assert [stream["scope"] for stream in found["streams"]] == ["cnn", "text"]
    assert sorted(os.listdir(plots)) == sorted(
        f"{s}-{name}.png" for s in ("cnn", "text") for name, _ in PLOTS
    )
    assert all((plots / name).read_bytes().startswith(b"\x89PNG") for name in os.listdir(plots))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing", None, "missing: there is no such directory or file; GRADFLOW_ANALYZE="),
        ("x.npz", b"no zip", "expected an .npz file of float32 arrays"),
        ("rank0.jsonl", b"{}", "name the directory that it lies in"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, capsys, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert cli.main(["analyze", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gradflow: ") and words in error


def test_an_unwritable_place_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["analyze", str(SAMPLE), "--plots", str(tmp_path / "file")]) == 1
    assert f"gradflow: {tmp_path / 'file'}: File exists" in capsys.readouterr().err
