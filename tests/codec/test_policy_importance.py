"""Running statistics of gradient and residual energy."""

import math

import pytest

from hvd_gradflow.codec.importance import FORGET_AFTER, Importance


def test_error_is_residual_over_gradient_energy():
    seen = Importance(window=10)
    for _ in range(3):
        seen.observe({"w": (4.0, 1.0)})
    assert seen.error("w") == pytest.approx(0.25)
    assert seen.energy("w") == pytest.approx(4.0)


def test_recent_rounds_weigh_more():
    seen = Importance(window=10)
    for _ in range(50):
        seen.observe({"w": (1.0, 0.0)})
    for _ in range(10):
        seen.observe({"w": (1.0, 1.0)})
    assert 0.6 < seen.error("w") < 0.7  # 1 - (1 - 1/10) ** 10 = 0.65


@pytest.mark.parametrize(
    "bad", [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (0.0, 0.0), (-1.0, 0.0)]
)
def test_a_round_that_is_not_finite_or_empty_changes_nothing(bad):
    seen = Importance(window=10)
    seen.observe({"w": (4.0, 1.0)})
    seen.observe({"w": bad})
    assert (seen.energy("w"), seen.error("w")) == (4.0, 0.25)


def test_what_was_never_observed_is_not_known():
    seen = Importance(window=10)
    assert seen.energy("w") is None
    assert seen.error("w") is None
    assert seen.remembered("w", "int8", 0) is None


def test_a_change_of_codec_starts_a_new_measurement_and_keeps_the_old_for_a_while():
    seen = Importance(window=10)
    seen.observe({"w": (4.0, 1.0)})
    seen.changed("w", "log4", decision=1)
    assert seen.error("w") is None
    assert seen.energy("w") == 4.0
    assert seen.remembered("w", "log4", 1 + FORGET_AFTER) == 0.25
    assert seen.remembered("w", "log4", 2 + FORGET_AFTER) is None
    seen.observe({"w": (4.0, 2.0)})
    assert seen.error("w") == 0.5
