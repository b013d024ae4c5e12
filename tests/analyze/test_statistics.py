"""Statistics of one gradient, against closed forms and pywt."""

import math

import numpy as np
import pytest

from hvd_gradflow.analyze.statistics import (
    EDGES,
    WHITE,
    band_energies,
    cosine,
    describe,
    energy,
    noise_scale,
    sample,
)


def normal(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def autoregressive(n, r, seed=0):
    """Values whose neighbours have the correlation r."""
    x, e = np.empty(n), np.random.default_rng(seed).standard_normal(n)
    x[0] = e[0]
    for i in range(1, n):
        x[i] = r * x[i - 1] + math.sqrt(1 - r * r) * e[i]
    return x.astype(np.float32)


def test_white_noise():
    found = describe(3e-4 * normal(1 << 17))
    assert found["rms"] == pytest.approx(3e-4, rel=0.01)
    assert found["kurtosis"] == pytest.approx(3.0, abs=0.1)
    assert found["bands"] == pytest.approx(WHITE, abs=0.01)
    assert found["zeros"] == 0.0
    assert found["small"] == pytest.approx(math.erf(0.01 / math.sqrt(2)), rel=0.15)
    assert found["quantiles"][:3] == pytest.approx([0.6745, 1.6449, 2.5758], rel=0.02)
    inner = [math.erf(2.0**e / math.sqrt(2)) for e in list(EDGES)[1:-1]]
    assert found["histogram"] == pytest.approx(np.diff([0.0, *inner, 1.0]), abs=0.01)


def test_a_constant():
    found = describe(np.full(64, -2.0, np.float32))
    assert (found["rms"], found["max"], found["held"]) == (2.0, 2.0, 58 / 64)
    assert found["bands"] == pytest.approx([1, 0, 0, 0], abs=1e-12)
    assert found["kurtosis"] is None  # it has no deviations
    assert found["quantiles"] == [1.0] * 4


def test_planted_sparsity():
    x = np.zeros(1000, np.float32)
    x[::10] = 1.0  # a hundred ones: ninety of them hold 90 %, but for what the small ones have
    x[5::10] = 1e-4
    found = describe(x)
    assert (found["zeros"], found["small"], found["held"]) == (0.8, 0.9, 0.091)
    assert sum(found["histogram"]) == pytest.approx(0.2)


def test_one_element_and_tiny_values():
    assert describe(np.array([-5.0], np.float32))["held"] == 1.0
    tiny = describe(np.array([1e-38, 3e-38] * 8, np.float32))
    assert tiny["rms"] == pytest.approx(math.sqrt(5) * 1e-38, rel=1e-5)
    assert band_energies(np.ones(7)) is None


@pytest.mark.parametrize("r", [-0.5, 0.5, 0.9])
def test_bands_of_correlated_neighbours(r):
    # The mean of a pair's sum has the energy 1 + r, its difference 1 - r: half the elements each.
    assert band_energies(autoregressive(1 << 16, r))[3] == pytest.approx((1 - r) / 2, abs=0.01)


def test_bands_are_those_of_pywt():
    pywt = pytest.importorskip("pywt")
    x = autoregressive(4096, 0.7).astype(np.float64)
    parts = [float((c**2).sum()) for c in pywt.wavedec(x, "haar", level=3)]
    assert band_energies(x) == pytest.approx([p / sum(parts) for p in parts], rel=1e-12)
    assert band_energies(np.append(x, [1e9] * 7)) == pytest.approx(band_energies(x))  # what makes no eight


def test_energy_is_added_exactly():
    x = np.full(1 << 20, 1e-3, np.float32)
    x[0] = 1e6
    assert energy(x) == pytest.approx(1e12 + (2**20 - 1) * float(np.float32(1e-3)) ** 2, rel=1e-12)
    assert energy(np.full(8, 1e-30, np.float32)) == pytest.approx(8e-60)
    assert math.isinf(energy(np.array([1, np.inf], np.float32)))


def test_cosine():
    a, b = normal(1 << 16, 1), normal(1 << 16, 2)
    mixed = (0.6 * a + 0.8 * b).astype(np.float32)
    assert cosine(a, mixed) == pytest.approx(0.6, abs=0.02)
    assert cosine(a, -a) == pytest.approx(-1.0)
    assert cosine(a, np.zeros_like(a)) is None
    assert cosine(1e-30 * a, 1e-30 * a) == pytest.approx(1.0)


@pytest.mark.parametrize("ranks", [2, 8])
def test_noise_scale_of_planted_noise(ranks):
    rng = np.random.default_rng(ranks)
    gradient, spread = rng.standard_normal(2000), 2.0  # S = 4 n, |G|^2 = n: B = 4 batches of a rank
    local, reduced = [], []
    for _ in range(50):
        each = gradient + spread * rng.standard_normal((ranks, gradient.size))
        local.append(float((each**2).sum(axis=1).mean()))
        reduced.append(float((each.mean(axis=0) ** 2).sum()))
    expected = spread**2 * gradient.size / float((gradient**2).sum())
    assert noise_scale(local, reduced, ranks) == pytest.approx(expected, rel=0.05)


def test_noise_scale_at_its_ends():
    assert noise_scale([4.0], [4.0], 2) == 0.0  # all ranks agree
    assert noise_scale([4.0], [1.0], 2) == math.inf  # less is left than of noise alone
    assert noise_scale([4.0], [4.0], 1) is None
    assert noise_scale([], [], 2) is None


@pytest.mark.parametrize("n", [1, 1000, 4096, 5000, 100_000, 1_000_003])
def test_a_sample_is_made_of_pieces_in_place(n):
    x = np.arange(n, dtype=np.float32)
    found = sample(x, 65536)
    assert found.base is None and found.size <= max(65536, 1)
    if n <= 65536:
        assert (found == x).all()
        return
    starts = found[np.flatnonzero(np.diff(found, prepend=-5) != 1)]
    assert (starts % 256 == 0).all() and len(starts) <= 2
    assert found.size == 65536 or n < 70000
    assert starts[0] > 0 and found[-1] < n  # neither the beginning nor the end alone
