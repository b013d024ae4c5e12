"""log4 against an oracle that tries all levels, and the cases that broke other exponent codes."""

import numpy as np
import pytest

from hvd_gradflow import codec as codecs

pytestmark = pytest.mark.usefixtures("platform")


def back(x, **options):
    codec = codecs.get("log4", **options)
    return codec.decode(codec.encode(np.asarray(x, np.float32)))


def test_power_of_two_maximum_and_zero_are_exact():
    y = back([1, -1, 0, 0.1])
    assert y[:3].tolist() == [1, -1, 0]
    assert y[3] == 0.125
    assert back([0, 0, 0, 4]).tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("exponent", [-126, -120, -60, 0, 60, 126])
def test_every_level_is_exact(exponent):
    levels = np.ldexp(np.float32(1), np.arange(max(exponent - 6, -126), exponent + 1)).astype(np.float32)
    x = np.concatenate([levels, -levels, [0]]).astype(np.float32)
    assert back(x).tolist() == x.tolist()
    assert back(x, rounding="stochastic").tolist() == x.tolist()


@pytest.mark.parametrize("top", [1.0, 1.49, 1.5, 1.99, 2.0])
@pytest.mark.parametrize("scale", [1.0, 2.0**-100, 2.0**100])
def test_nearest_of_all_levels(top, scale):
    rng = np.random.default_rng(1)
    x = np.append(rng.uniform(-1, 1, 255) ** 5 * 0.99, [top]).astype(np.float32)
    largest = 1.0 if top < 1.5 else 2.0
    levels = np.append(largest * 2.0 ** -np.arange(7), 0)
    nearest = np.abs(np.abs(x)[:, None] - levels).min(axis=1)
    y = back(x * np.float32(scale)) / np.float32(scale)
    np.testing.assert_allclose(np.abs(y - x), nearest, rtol=1e-6, atol=1e-12)
    assert (np.sign(y) * np.sign(x) >= 0).all()


def test_ties_go_up():
    # The levels are 1, 1/2, ... 1/64, 0.
    x = np.array([1, 0.75, 0.375, -0.75, 1 / 128, np.nextafter(np.float32(1 / 128), np.float32(0))])
    assert back(x).tolist() == [1, 1, 0.5, -1, 1 / 64, 0]


def test_exponent_bytes():
    x = np.zeros(64 * 5, np.float32)
    x[0], x[64], x[128], x[192] = 1.0, -1.5, 1e-42, np.inf
    assert codecs.get("log4", block=64).encode(x)[32:37].tolist() == [127, 128, 7, 255, 0]


def test_order_within_a_byte():
    x = np.array([1, -1, 0.5, 0, -0.25], np.float32)
    assert codecs.get("log4").encode(x)[33:].tolist() == [0xF7, 0x06, 0x0D]


def test_stochastic_takes_one_of_the_two_neighbours():
    x = np.array([1.7, 0.3, 0.02, 0.001, 0], np.float32)
    codec = codecs.get("log4", rounding="stochastic")
    seen = [set() for _ in x]
    for key in range(2000):
        for place, value in zip(seen, codec.decode(codec.encode(x, key=key)).tolist()):
            place.add(value)
    assert seen == [{1, 2}, {0.25, 0.5}, {0, 2.0**-5}, {0, 2.0**-5}, {0}]
