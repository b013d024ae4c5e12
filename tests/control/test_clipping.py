"""The norm of all gradients, and what is made of it."""

import math

import numpy as np
import pytest

from hvd_gradflow.control import clipping, scaled_lr
from hvd_gradflow.errors import ConfigError


@pytest.mark.parametrize("n", [0, 1, 7, 4097, 100_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_energy_is_the_sum_of_squares(n, dtype):
    x = np.random.default_rng(n).standard_normal(n).astype(dtype)
    wanted = math.fsum(float(v) ** 2 for v in x)
    assert clipping.energy(x) == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_and_clips_nothing(bad):
    x = np.ones(5000, np.float32)
    x[4321] = bad
    norm = clipping.norm([1.0, clipping.energy(x)])
    assert math.isnan(norm) and clipping.factor(norm, 0.1) == 1.0


def test_the_extremes():
    assert clipping.norm([clipping.energy(np.full(1000, 3e38, np.float32))]) == pytest.approx(
        3e38 * 1000**0.5
    )
    assert clipping.norm([]) == 0.0 and clipping.factor(0.0, 1.0) == 1.0
    assert clipping.factor(4.0, 1.0) == pytest.approx(0.25) and clipping.factor(0.5, 1.0) == 1.0


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan, "1", True])
def test_impossible_limits(limit):
    with pytest.raises(ConfigError, match=r"clip_norm=.*positive number"):
        clipping.checked(limit, "clip_norm")


def test_the_linear_scaling_rule():
    # Goyal et al. 2017: 0.1 for 256 images, so 3.2 for 8192 of 256 workers with 32 each.
    assert scaled_lr(0.1, batch=32, ranks=256) == pytest.approx(3.2)
    with pytest.raises(ConfigError, match="batch=0"):
        scaled_lr(0.1, batch=0)
