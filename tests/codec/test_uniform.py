"""int8, int4, int2: the cases that broke other quantizers, and the packed layout."""

import numpy as np
import pytest

from hvd_gradflow import codec as codecs

pytestmark = pytest.mark.usefixtures("platform")


def back(name, x, **options):
    codec = codecs.get(name, **options)
    return codec.decode(codec.encode(np.asarray(x, np.float32)))


def test_sums_of_decoded_values_do_not_wrap():
    codec = codecs.get("int8")
    acc = np.zeros(1, np.float32)
    for _ in range(2):
        codec.decode_add(codec.encode(np.array([100], np.float32)), acc)
    assert acc.tolist() == [200]


def test_a_lone_value_keeps_its_place():
    assert back("int8", [0, 0, 0, 4]).tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e-10, 1e-37, 1e37])
def test_relative_error_does_not_depend_on_the_scale(scale):
    x = np.array([1, -2, 3], np.float32)
    y = back("int8", x * np.float32(scale)) / np.float32(scale)
    np.testing.assert_allclose(y, x, atol=3 / 127 / 2 * 1.001)
    assert y[2] == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_narrow_negative_block(name):
    x = np.array([-1000, -990, -980], np.float32)
    y = back(name, x)
    assert (y < 0).all()
    assert np.abs(y - x).max() <= 1000 / {"int8": 127, "int4": 7}[name] / 2 * 1.0001


def test_one_spike_in_a_million():
    x = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
    x[12345] = 1e4
    y = back("int8", x)
    kept = np.count_nonzero(y) / x.size
    assert kept > 0.98
    others = np.arange(x.size) // 256 != 12345 // 256
    assert np.linalg.norm((y - x)[others]) / np.linalg.norm(x[others]) < 0.01


def test_half_a_step_rounds_to_even():
    x = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert back("int8", x).tolist() == [127, 0, 2, 2, 0, -2]


def test_order_within_a_byte():
    x = np.array([7, 1, -1, -7, 3], np.float32)
    assert codecs.get("int4").encode(x)[36:].tolist() == [0x17, 0x9F, 0x03]
    x = np.array([1, 0, -1, 1, -1], np.float32)
    assert codecs.get("int2").encode(x)[36:].tolist() == [0b01_11_00_01, 0b11]


def test_the_scale_is_the_largest_magnitude():
    x = np.zeros(300, np.float32)
    x[3], x[290] = -2.5, 0.75
    assert codecs.get("int8").encode(x)[32:40].view(np.float32).tolist() == [2.5, 0.75]


def test_stochastic_rounding_leaves_whole_steps_alone():
    x = np.arange(-127, 128, dtype=np.float32)
    codec = codecs.get("int8", rounding="stochastic")
    for key in range(200):
        assert codec.decode(codec.encode(x, key=key)).tolist() == x.tolist()
