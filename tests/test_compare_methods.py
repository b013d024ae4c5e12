"""scripts/compare_methods.py, with few steps on a few images of noise, and what it simulates."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
GRADIENT = 4 * 218_058
SMALL = 4 * (256 + 64 + 650)  # bytes of what is never compressed


@pytest.fixture
def compare(monkeypatch, small_fashion, tmp_path):
    """Run the script in this process and return its exit code and the results."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import compare_methods

    def run(*words):
        file = tmp_path / "results.json"
        always = ["--data", small_fashion, "--limit", 128, "--seeds", 0, "--timeout", 240, "--json", file]
        monkeypatch.setattr(sys, "argv", ["compare_methods.py", *map(str, [*always, *words])])
        code = compare_methods.main()
        return code, json.loads(file.read_text())["results"] if code == 0 else None

    return run


def test_every_method_trains_and_counts_its_bytes(compare, capsys):
    ways = ("powersgd:rank=2,start=2", "topk:k=0.01", "deadzone:step=1", "none")
    code, results = compare("--steps", 4, "--methods", *ways)
    assert code == 0
    sent = {way: runs[0]["bytes"] for way, runs in results.items()}
    assert sent["none"] == GRADIENT
    # Each of two matrices: its rank, the sum of its extents, 4 bytes.
    assert sent["powersgd:rank=2,start=2"] == SMALL + 4 * 2 * (256 + 784 + 64 + 256)
    once = 2007 * 8 + 163 * 6  # one worker's choice; the union has at least as many, at most twice as many
    assert SMALL + once <= sent["topk:k=0.01"] <= SMALL + 1.5 * once
    assert SMALL < sent["deadzone:step=1"] < GRADIENT / 8
    assert all(
        0 <= run["accuracy"] <= 1 and 0 < run["loss"] < 10 for runs in results.values() for run in runs
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| none | 872.2 | 1.0 x | ")
    assert len(lines) == 6
    order = [float(line.split(" | ")[1]) for line in lines[2:]]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["topk:k=2"], "topk: k=2: expected the part of the elements to send"),
        (["deadzone:step=-1"], "step=-1: expected a number above 0"),
        (["powersgd:rank=0"], "powersgd: rank=0: expected an integer, at least 1"),
        (["powersgd:rank=300"], "powersgd: rank=300 is too high"),
        (["powersgd:rank=1", "--steps", "10"], "powersgd: 10 steps are not more than start=10"),
        (["none", "--data", "nowhere"], "is missing: apt-get install dataset-fashion-mnist"),
        (["powersgd:rank=1", "--timeout", "0.01"], "powersgd: not done after 0.01 seconds: raise --timeout"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_cannot_be_run_is_one_sentence(compare, capsys, words, error):
    assert compare("--methods", *words) == (1, None)
    said = capsys.readouterr().err
    assert said.startswith("compare_methods.py: ")
    assert said.count("\n") == 1
    assert error in said


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--methods", "top"], "unknown method 'top'; known: none, topk, deadzone, powersgd"),
        (["--methods", "topk:n=3"], "topk: unknown option 'n'; known: k"),
        (["--methods", "none:"], "expected KEY=VALUE"),
        (["--steps", "0"], "--steps 0: expected more than 0"),
    ],
)
def test_what_cannot_be_read_is_refused(compare, capsys, words, error):
    with pytest.raises(SystemExit) as ended:
        compare(*words)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.fixture
def methods(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training import methods

    return methods


@pytest.mark.parametrize(("name", "options"), [("topk", {"k": 0.05}), ("deadzone", {"similarity": 0.9})])
def test_what_is_not_sent_is_kept(methods, name, options):
    way, rng = methods.SIMULATIONS[name]([2048, 1050], **options), np.random.default_rng(0)
    inputs = arrived = 0
    for _ in range(5):
        x = [rng.laplace(size=3098).astype(np.float32) for _ in range(2)]
        inputs = inputs + x[0] + x[1]
        arrived = arrived + way.exchange(x)
    np.testing.assert_allclose(arrived + sum(way.residuals), inputs, atol=1e-4)
    assert 0 < way.sent < 5 * 2 * 4 * 3098


def test_steps_follow_the_last_inputs(methods):
    way, rng = methods.Deadzone([2048], step=2), np.random.default_rng(0)
    energy = None
    for _ in range(3):
        x = [rng.normal(size=2048).astype(np.float32) for _ in range(2)]
        inputs = sum(float(np.dot(part, part)) for part in x)
        reduced = way.exchange(x)
        step = 2 / math.sqrt(2) * math.sqrt((energy or inputs) / 2048)
        np.testing.assert_allclose(reduced / step, np.rint(reduced / step), atol=1e-4)
        energy = inputs


def test_a_target_ratio_is_about_held(methods):
    way, rng = methods.Deadzone([40_000], target_ratio=25), np.random.default_rng(0)
    for step in range(40):
        if step == 20:
            way.sent = 0
        way.exchange([rng.laplace(size=40_000).astype(np.float32) for _ in range(2)])
    assert 20 * 2 * 4 * 40_000 / way.sent == pytest.approx(25, rel=0.15)
