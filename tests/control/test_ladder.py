"""The ladder: each step loses less, and it ends where nothing is lost."""

import pytest

from hvd_gradflow import codec
from hvd_gradflow.codec.policy_model import rounding_error
from hvd_gradflow.control.ladder import climbed, finer, more_faithful, shown

STARTS = [codec.get(name) for name in codec.names()] + [
    codec.get("deadzone", target_ratio=200),
    codec.get("deadzone", target_ratio=4),
    codec.get("deadzone", step=3.0),
    codec.get("deadzone", similarity=0.5, domain="normalized"),
    codec.get("int4", block=64, rounding="stochastic", seed=3),
    codec.get("log4", error_feedback=False),
]


@pytest.mark.parametrize("start", STARTS, ids=repr)
def test_each_step_loses_less_and_the_last_nothing(start):
    steps = [start, *climbed(start, 100)]
    errors = [rounding_error(c) for c in steps]
    assert errors == sorted(errors, reverse=True) and len(set(errors)) == len(errors)
    assert not steps[-1].lossy and len(steps) < 12
    assert finer(steps[-1]) is None


def test_options_are_handed_on():
    above = finer(codec.get("log4", block=64, rounding="stochastic", seed=3))
    assert (above.name, above.block, above.rounding, above.seed) == ("int8", 64, "stochastic", 3)
    assert finer(codec.get("log4", error_feedback=False)).error_feedback is False


def test_deadzone_goes_to_half_its_step():
    assert finer(codec.get("deadzone", step=1.5)).control == ("step", 0.75)
    name, value = finer(codec.get("deadzone", similarity=0.5)).control
    assert name == "similarity" and 1 - value**2 == pytest.approx((1 - 0.5**2) / 4)
    normalized = finer(codec.get("deadzone", step=1.5, domain="normalized"))
    assert normalized.domain == "normalized"


def test_a_floor_never_makes_a_choice_coarser():
    assert more_faithful(codec.get("int8"), codec.get("log4")).name == "int8"
    assert more_faithful(codec.get("log4"), codec.get("int8")).name == "int8"
    assert shown(codec.get("deadzone", target_ratio=50)) == "deadzone(target_ratio=50)"
