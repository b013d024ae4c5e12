"""none, fp16, bf16: the right roundings, and no infinity from a finite value."""

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.errors import ConfigError

pytestmark = pytest.mark.usefixtures("platform")


def back(name, x, **options):
    codec = codecs.get(name, **options)
    return codec.decode(codec.encode(np.asarray(x, np.float32)))


def test_none_keeps_every_finite_bit():
    x = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    assert back("none", x).tobytes() == x.tobytes()
    assert not codecs.get("none").lossy


def test_none_sends_what_the_residual_holds():
    residual = np.array([1, -2, 0], np.float32)
    codec = codecs.get("none")
    assert codec.decode(codec.encode(np.ones(3, np.float32), residual=residual)).tolist() == [2, -1, 1]
    assert residual.tolist() == [0, 0, 0]


def test_fp16_equals_numpy_where_binary16_is_normal():
    rng = np.random.default_rng(1)
    x = (rng.choice([-1, 1], 5000) * 2.0 ** rng.uniform(-13, 15.9, 5000)).astype(np.float32)
    x = np.sort(x)  # blocks of like size
    assert back("fp16", x, block=32).tobytes() == x.astype(np.float16).astype(np.float32).tobytes()


def test_fp16_averages_that_overflowed_elsewhere():
    acc = np.zeros(1, np.float32)
    codec = codecs.get("fp16")
    for _ in range(2):
        codec.decode_add(codec.encode(np.array([60000], np.float32)), acc)
    assert acc.tolist() == [120000]
    loss_scaled = np.array([3.0, 0.5, 7.0], np.float32) * 65536
    assert back("fp16", loss_scaled).tolist() == loss_scaled.tolist()


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-20, 1e-6, 1e6, 1e30])
def test_fp16_precision_does_not_depend_on_the_scale(scale):
    x = np.array([1.0, 0.1, -0.01], np.float64) * scale
    y = back("fp16", x)
    bound = np.maximum(np.abs(x) * 2.0**-10, 2.0**-149)
    assert (np.abs(y - x) <= bound).all()


def test_fp16_exponent_bytes():
    x = np.zeros(96, np.float32)
    x[0], x[64] = 1.5, np.nan
    assert codecs.get("fp16", block=32).encode(x)[32:35].tolist() == [127, 0, 255]


def test_bf16_rounds_to_nearest_even():
    one = 0x3F80_0000
    bits = np.array([one + 0x7FFF, one + 0x8000, one + 0x8001, one + 0x1_8000], np.uint32)
    expected = [one, one, one + 0x1_0000, one + 0x2_0000]
    assert back("bf16", bits.view(np.float32)).view(np.uint32).tolist() == expected


def test_bf16_equals_torch_where_that_is_finite():
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(2).integers(0, 2**32, 20000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    expected = torch.from_numpy(x).bfloat16().float().numpy()
    y = back("bf16", x)
    finite = np.isfinite(expected)
    assert y[finite].tobytes() == expected[finite].tobytes()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("name", ["none", "bf16", "fp16"])
def test_only_nearest(name):
    with pytest.raises(ConfigError, match=r"unknown option 'rounding'"):
        codecs.get(name, rounding="stochastic")
