"""The accuracy guard as a policy, with made-up statistics."""

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from hvd_gradflow import codec
from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.codec.policy_model import rounding_error
from hvd_gradflow.control import AccuracyGuard
from hvd_gradflow.control.watch import LossWatch
from hvd_gradflow.errors import ConfigError


@dataclass(frozen=True)
class Spec:
    name: str
    shape: tuple
    dtype: str = "float32"
    kind: str = "dense"


SPECS = [Spec("w", (64, 64)), Spec("v", (128, 64)), Spec("b", (8,), kind="vector")]
QUICK = {"patience": 2, "window": 3}


def started(compression="log4", specs=SPECS, **options):
    guard = AccuracyGuard(compression, **{**QUICK, **options}).fresh()
    return guard, guard.start(specs, "energy", 1024)


def names(table):
    return {name: c.name for name, c in table.items()}


def rounds(guard, table, count, **errors):
    """So many rounds with these ratios of residual to gradient energy; returns the table after them."""
    for _ in range(count):
        table = guard.update({name: (2.0, 2.0 * error) for name, error in errors.items()}) or table
    return table


def test_it_starts_as_what_it_guards():
    guard, table = started()
    assert names(table) == {"w": "log4", "v": "log4", "b": "none"}
    assert names(rounds(guard, table, 100, w=0.29, v=0.04)) == names(table) and guard.notes() == []


def test_a_layer_is_raised_after_patience_and_no_other():
    guard, table = started()
    assert names(rounds(guard, table, 5, w=0.5, v=0.04))["w"] == "log4"
    table = rounds(guard, table, 1, w=0.5, v=0.04)
    assert names(table) == {"w": "int8", "v": "log4", "b": "none"}
    ((sentence, fields),) = guard.notes()
    assert "w: log4 -> int8" in sentence and "0.5" in sentence
    assert fields["layers"] == ["w"] and fields["bytes_after"] > 1.8 * fields["bytes_before"]
    assert guard.notes() == []


def test_a_good_window_between_starts_the_count_anew():
    guard, table = started()
    for _ in range(5):
        table = rounds(guard, table, 3, w=0.5)
        table = rounds(guard, table, 3, w=0.1)
    assert names(table)["w"] == "log4"


def test_it_only_climbs_while_there_is_trouble_and_ends_at_none():
    guard, table = started("int2", calm=5)
    seen = [table["w"]]
    for _ in range(60):
        table = rounds(guard, table, 1, **({} if table["w"].name == "none" else {"w": 9.0}))
        if table["w"] != seen[-1]:
            seen.append(table["w"])
        if table["w"].name == "none":
            break
    assert [c.name for c in seen] == ["int2", "int4", "int8", "fp16", "none"]
    errors = [rounding_error(c) for c in seen]
    assert errors == sorted(errors, reverse=True)


def test_what_is_not_finite_says_nothing():
    guard, _table = started()
    for energies in ((float("nan"), 1.0), (float("inf"), float("inf")), (0.0, 0.0), (1.0, float("nan"))):
        for _ in range(20):
            assert guard.update({"w": energies}) is None


def test_stepping_back_takes_twice_as_long_each_time():
    guard, table = started(calm=4)  # 12 rounds
    back, changes = [], []
    last = "log4"
    for i in range(2000):
        name = names(table)["w"]
        table = rounds(guard, table, 1, w=0.5 if name == "log4" else 0.001)
        if names(table)["w"] != last:
            last = names(table)["w"]
            changes.append(last)
            if last == "log4":
                back.append(i)
    gaps = [b - a for a, b in itertools.pairwise(back)]
    assert all(b >= 1.7 * a for a, b in itertools.pairwise(gaps)) and 5 <= len(back) <= 8
    assert set(changes) == {"log4", "int8"}
    guard, table = started(calm=None)
    table = rounds(guard, rounds(guard, table, 6, w=0.5), 2000, w=0.001)
    assert names(table)["w"] == "int8"


def test_loss_raises_all_that_lose_something():
    guard, _table = started(error=None, loss=0.1)
    assert guard.heard((10.0, 10, 0)) is None
    assert guard.heard((0.0, 0, 0)) is None  # nobody reported
    assert guard.heard((10.9, 10, 0)) is None  # within a tenth of the best
    assert guard.heard((24.0, 20, 0)) is None  # once
    assert names(guard.heard((12.0, 10, 0))) == {"w": "int8", "v": "int8", "b": "none"}
    ((sentence, fields),) = guard.notes()
    assert "v, w: log4 -> int8 (loss 1.2, above its best, 1" in sentence and fields["layers"] == ["v", "w"]
    # From here on it is measured against what comes after.
    for _ in range(10):
        assert guard.heard((12.0, 10, 0)) is None
    assert guard.heard((14.0, 10, 0)) is None
    assert names(guard.heard((14.0, 10, 0)))["w"] == "fp16"


def test_loss_below_zero():
    guard, _ = started(loss=0.1)
    assert guard.heard((-10.0, 10, 0)) is None
    assert guard.heard((-9.5, 10, 0)) is None
    assert guard.heard((-8.0, 10, 0)) is None
    assert guard.heard((-8.0, 10, 0)) is not None


def test_ranks_decide_alike_whatever_the_order():
    rng = random.Random(3)
    first, table = started(calm=3, loss=0.1)
    second, other = started(calm=3, loss=0.1, specs=SPECS[::-1])
    for i in range(600):
        statistics = [(s.name, (1.0, rng.choice([0.05, 0.5, 0.6]))) for s in SPECS[:2]]
        if i % 7 == 0:
            del statistics[rng.randrange(2)]
        table = first.update(dict(statistics)) or table
        other = second.update(dict(statistics[::-1])) or other
        if i % 3 == 2:
            totals = (rng.uniform(5.0, 7.0), 5.0, 0.0)
            table, other = first.heard(totals) or table, second.heard(totals) or other
        assert table == other
        assert first.notes() == second.notes()


def test_the_choice_inside_may_move_but_not_below_the_floor():
    # adaptive lowers a layer of little energy to log4, unless the guard has raised it.
    guard, table = started(as_policy("adaptive", warmup=40, window=20), calm=None)
    table = rounds(guard, table, 6, v=0.5)
    assert names(table) == {"w": "int8", "v": "fp16", "b": "none"}
    for _ in range(200):
        table = guard.update({"v": (1e-6, 1e-12), "w": (1.0, 1e-5)}) or table
    assert guard._chosen["v"].name == "log4" and names(table)["v"] == "fp16"


def test_reports_are_read_once_by_each_stream():
    user = AccuracyGuard("log4")
    first, second = user.fresh(), user.fresh().fresh()
    for loss in (1.0, 2.0, float("nan"), float("inf")):
        user.report_loss(loss)
    assert first.report() == (3.0, 2.0, 2.0) and first.report() == (0.0, 0.0, 0.0)
    user.report_loss(4)
    assert first.report() == (4.0, 1.0, 0.0) and second.report() == (7.0, 3.0, 2.0)


def test_what_survives_a_join():
    guard, table = started()
    table = rounds(guard, table, 12, w=0.5)
    assert names(table)["w"] == "fp16"
    carried = guard.carried()
    assert len(carried) == len(SPECS) and max(carried) == 2
    behind, _ = started()
    for one in (guard, behind):
        one.start(SPECS, "energy", 1024)
        assert names(one.resume(carried)) == names(table)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"error": 0.0}, "error=0.0, expected a positive number"),
        ({"loss": "much"}, "loss='much', expected a positive number"),
        ({"error": None, "loss": None}, "nothing would be guarded"),
        ({"patience": 0}, "patience=0, expected a whole number"),
        ({"window": 2.5}, r"window=2\.5, expected a whole number"),
    ],
)
def test_impossible_options(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        AccuracyGuard("log4", **options)


def test_what_cannot_be_guarded_or_reported():
    with pytest.raises(ConfigError, match="guard the compression that it guards"):
        AccuracyGuard(AccuracyGuard("log4"))
    with pytest.raises(ConfigError, match="expected a name, a codec or a policy"):
        AccuracyGuard(3)
    with pytest.raises(ConfigError, match="loss=None"):
        AccuracyGuard("log4", loss=None).report_loss(1.0)
    with pytest.raises(ConfigError, match="expected a number"):
        AccuracyGuard("log4").report_loss("low")
    assert repr(AccuracyGuard(codec.get("log4"))) == repr(AccuracyGuard("log4"))


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_noise_alone_is_no_trouble(noise):
    for seed in range(5):
        rng, watch = np.random.default_rng(seed), LossWatch(0.05, 3)
        windows = rng.lognormal(0.0, noise, size=(1000, 40)).mean(axis=1)  # of 20 steps on two ranks
        assert not any(watch.observe(loss) for loss in windows)


def test_not_finite_is_trouble():
    watch = LossWatch(0.05, 3)
    assert [watch.observe(x) for x in (1.0, 0.9, math.nan, math.inf, math.nan)] == [
        None,
        None,
        False,
        False,
        True,
    ]
    watch = LossWatch(0.05, 2)
    assert [watch.observe(math.nan) for _ in range(2)] == [False, True]
