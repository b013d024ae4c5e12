"""What every codec must pass, whatever runs its kernels; subclass CodecConformance for a codec of your own.

A subclass gives the fixture ``codec``; the fixture ``platform`` (tests/codec/conftest.py) runs each test on
the reference and on every instruction level of the machine.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.codec.wire import Header

FLOAT_MAX = np.finfo(np.float32).max
LENGTHS = (0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2305, 4099)
SCALES = (1e-45, 1e-41, 1e-37, 1e-30, 1e-19, 1e-9, 1e9, 1e19, 1e37, float(FLOAT_MAX))


def values(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Laplace-distributed float32 with some exact zeros."""
    rng = np.random.default_rng(seed)
    x = rng.laplace(size=n) * scale
    x[rng.random(n) < 0.1] = 0
    return x.astype(np.float32)


def block_maxima(codec, x: np.ndarray) -> np.ndarray:
    """The largest magnitude of each element's block, in float64."""
    block = codec.spec()["block"]
    padded = np.zeros(-(-x.size // block) * block)
    padded[: x.size] = np.abs(x.astype(np.float64))
    return np.repeat(padded.reshape(-1, block).max(axis=1, initial=0), block)[: x.size]


def encoder(codec, x: np.ndarray):
    """How to encode `x`, and arrays like it, with what a codec derives from a whole array held fixed."""
    if not codec.stepped:
        return codec.encode
    _, steps = codec.steps(codec.encode(x))
    return lambda y, residual=None, **_: codec.encode_stepped(y, [y.size], steps[:1], residual=residual)


def stepped_error_bound(codec, x: np.ndarray, payload: np.ndarray) -> np.ndarray:
    """The same for codecs whose payloads carry steps."""
    ends, steps = codec.steps(payload)
    step = np.repeat(steps.astype(np.float64), np.diff(ends.astype(np.int64), prepend=0))
    magnitude, largest = np.abs(x.astype(np.float64)), block_maxima(codec, x)
    with np.errstate(divide="ignore", invalid="ignore"):
        over = np.floor(np.log2(largest)) - np.floor(np.log2(step)) + 1 - 12
    coarse = step * 2.0 ** np.clip(np.where(largest > 0, over, 0), 0, 100)
    # Quotients of up to 2^12 are rounded, which may move one across the border between two codes.
    return np.where(step > 0, coarse * (max(codec.offset, 1 - codec.offset) + 1e-3), magnitude)


def error_bound(codec, x: np.ndarray, payload: np.ndarray | None = None) -> np.ndarray:
    """How far each decoded element may be from `x`, from the codec's definition (and the payload's steps)."""
    if codec.stepped:
        return stepped_error_bound(codec, x, codec.encode(x) if payload is None else payload)
    magnitude, largest = np.abs(x.astype(np.float64)), block_maxima(codec, x)
    stochastic = codec.spec()["rounding"] == 1
    tiny = 2.0**-149  # one unit of the last place of a denormal result
    if codec.name in ("none", "powersgd"):  # arrays of one dimension are no matrices
        return np.zeros(x.size)
    if codec.name == "bf16":
        return np.maximum(magnitude * 2.0**-8, 2.0**-134)  # 2^-133 is bfloat16's smallest
    if codec.name == "fp16":
        return np.maximum(magnitude * 2.0**-11, largest * 2.0**-38) + tiny
    if codec.name == "log4":
        lowest = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(largest, 2.0**-149))) - 5), 2.0**-126)
        if stochastic:
            return np.maximum(magnitude, lowest)
        # 2^128 does not exist, so values next to it become 2^127.
        return np.maximum(magnitude / np.where(magnitude < 1.5 * 2.0**127, 3, 2), lowest / 2)
    if codec.name == "topk":
        sent = np.argsort(-magnitude, kind="stable")[: int(np.ceil(codec.ratio * x.size))]
        magnitude[sent] = 0
        return magnitude
    if codec.name == "sign1":
        return np.maximum(magnitude, largest - magnitude)  # their mean is between zero and the largest
    step = largest / (2 ** (codec.spec()["bits"] - 1) - 1)
    return step * (1.0 if stochastic else 0.5) * (1 + 1e-5) + tiny


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal bit for bit; unlike ``==`` this tells -0 from 0 and knows NaN."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.usefixtures("platform")
class CodecConformance:
    """The contract of hvd_gradflow.codec.base, as tests."""

    def test_any_length_comes_back_within_the_bound(self, codec):
        for n in LENGTHS:
            x = values(n, seed=n)
            payload = codec.encode(x)
            y = codec.decode(payload)
            assert payload.dtype == np.uint8
            assert payload.size <= codec.max_encoded_size(n)
            assert y.dtype == np.float32
            assert y.shape == (n,)
            assert (np.abs(y.astype(np.float64) - x) <= error_bound(codec, x)).all(), n
            header = Header.unpack(payload)
            assert (header.codec, header.count, header.length) == (codec.wire_id, n, payload.size - 32)

    def test_any_scale_comes_back_finite_and_within_the_bound(self, codec):
        unit = np.clip(values(1500, seed=1) / 4, -1, 1).astype(np.float64)
        unit[[0, 300, 700]] = (1, -1, 1)
        for scale in SCALES:
            x = (unit * scale).astype(np.float32)
            y = codec.decode(codec.encode(x))
            assert np.isfinite(y).all(), scale
            assert (np.abs(y.astype(np.float64) - x) <= error_bound(codec, x)).all(), scale

    @pytest.mark.parametrize("negative", [False, True])
    def test_zeros_stay_exactly_zero(self, codec, negative):
        residual = np.zeros(700, np.float32)
        x = np.full(700, -0.0 if negative else 0.0, np.float32)
        y = codec.decode(codec.encode(x, residual=residual))
        assert not y.any()
        assert not residual.any()
        for x in ([0, 0, 0, 4], [0, -3, 0, 0, 0]):  # and next to others
            x = np.array(x, np.float32)
            y = codec.decode(codec.encode(x))
            assert same_bits(y[x == 0], np.zeros((x == 0).sum(), np.float32))
            assert y[x != 0] == x[x != 0] or abs(y[x != 0] - x[x != 0]) <= abs(x[x != 0]) / 3

    def test_a_spike_harms_only_its_block(self, codec):
        x = values(4 * codec.spec()["block"] if codec.spec()["block"] > 1 else 1024, seed=2)
        spiked = x.copy()
        spiked[5] = 1e4
        encode = encoder(codec, x)
        payload = encode(spiked)
        before, after = codec.decode(encode(x)), codec.decode(payload)
        block = max(codec.spec()["block"], 6)
        if codec.for_sums() is not None:  # one value has to make room
            gone = np.flatnonzero(before[block:] != after[block:])
            assert gone.size <= 1 and not after[block:][gone].any()
        else:
            assert same_bits(before[block:], after[block:])
        assert abs(after[5] - 1e4) <= error_bound(codec, spiked, payload)[5]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite_is_not_hidden_and_stays_in_its_block(self, codec, bad):
        block = codec.spec()["block"]
        n = 3 * max(block, 32) + 5
        x, residual = values(n, seed=3), values(n, seed=4, scale=0.01)
        at = n // 2
        hurt = np.arange(n) // block == at // block
        clean_residual, clean = residual.copy(), x.copy()
        encode = encoder(codec, x)
        expected = codec.decode(encode(clean, residual=clean_residual))
        x[at] = bad
        kept = residual.copy()
        y = codec.decode(encode(x, residual=residual))
        assert not np.isfinite(y[hurt]).any()
        assert same_bits(y[~hurt], expected[~hurt])
        assert same_bits(residual[hurt], kept[hurt])
        assert same_bits(residual[~hurt], clean_residual[~hurt])
        # The next step is clean again.
        assert np.isfinite(codec.decode(codec.encode(clean, residual=residual))).all()

    def test_every_block_not_finite(self, codec):
        x = np.full(1000, np.nan, np.float32)
        acc = np.ones(1000, np.float32)
        codec.decode_add(codec.encode(x), acc)
        assert np.isnan(acc).all()

    def test_residual_is_what_was_lost(self, codec):
        x, residual = values(1999, seed=5), values(1999, seed=6, scale=0.3)
        total = x + residual
        y = codec.decode(codec.encode(x, residual=residual))
        assert same_bits(residual, total - y)

    def test_error_feedback_telescopes(self, codec):
        n, steps = 1025, 60
        residual = np.zeros(n, np.float32)
        sent, given = np.zeros(n), np.zeros(n)
        for step in range(steps):
            x = values(n, seed=100 + step)
            given += x
            sent += codec.decode(codec.encode(x, residual=residual, key=step))
        assert np.abs(given - sent - residual).max() < 1e-3
        assert np.abs(residual).max() < 40  # it does not grow without bound, even with two bits

    def test_sum_with_the_residual_never_overflows(self, codec):
        x = np.full(300, FLOAT_MAX, np.float32)
        x[7] = -FLOAT_MAX
        residual = (x / 2).astype(np.float32)
        y = codec.decode(codec.encode(x, residual=residual))
        assert np.isfinite(y).all()
        assert np.isfinite(residual).all()

    def test_decode_add_adds_what_decode_gives(self, codec):
        x, acc = values(2305, seed=7), values(2305, seed=8)
        payload = codec.encode(x)
        expected = acc + codec.decode(payload)
        assert codec.decode_add(payload, acc) is acc
        assert same_bits(acc, expected)

    def test_out_is_used(self, codec):
        x = values(500, seed=9)
        room = np.full(codec.max_encoded_size(500) + 9, 0xA5, np.uint8)
        payload = codec.encode(x, out=room)
        assert np.shares_memory(payload, room)
        assert same_bits(payload, codec.encode(x))
        assert (room[codec.max_encoded_size(500) :] == 0xA5).all()
        y = np.empty((5, 100), np.float32)
        assert codec.decode(payload, out=y) is y
        assert same_bits(y.reshape(-1), codec.decode(payload))

    def test_cut_at_a_block_border_it_gives_the_same(self, codec):
        block = max(codec.spec()["block"], 32)
        x = values(3 * block + 11, seed=10)
        codec = codec.for_sums() or codec  # which elements are sent depends on all of them
        encode = encoder(codec, x)
        whole = codec.decode(encode(x, key=77, first=4 * block))
        parts = [
            codec.decode(encode(x[a:b], key=77, first=4 * block + a))
            for a, b in ((0, block), (block, 3 * block), (3 * block, x.size))
        ]
        assert same_bits(np.concatenate(parts), whole)

    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    def test_other_types_are_read(self, codec, dtype):
        x = values(777, seed=11).astype(dtype)
        assert same_bits(codec.decode(codec.encode(x)), codec.decode(codec.encode(x.astype(np.float32))))

    def test_strides_are_read(self, codec):
        x = values(24 * 30, seed=12).reshape(24, 30)
        for part in (x.T, x[:, 0], x[::-2, ::3]):
            packed = np.ascontiguousarray(part)
            assert same_bits(codec.encode(part), codec.encode(packed))

    def test_scalars_are_read(self, codec):
        for x in (np.float32(1.0), np.array(1.0)):
            [y] = codec.decode(codec.encode(x)).tolist()
            assert abs(y - 1.0) <= (0.2 if codec.stepped else 0.0)

    def test_a_residual_that_does_not_fit_is_refused(self, codec):
        x = values(10)
        for residual, error in (
            (np.zeros(9, np.float32), ValueError),
            (np.zeros(10), TypeError),
            (np.zeros(20, np.float32)[::2], ValueError),
        ):
            with pytest.raises(error, match="residual"):
                codec.encode(x, residual=residual)

    def test_an_unaligned_first_is_refused(self, codec):
        if codec.spec()["block"] > 1:
            with pytest.raises(ValueError, match="first=3"):
                codec.encode(values(10), first=3)

    def test_it_is_a_value(self, codec):
        again = codecs.from_config(codec.get_config())
        assert again == codec
        assert hash(again) == hash(codec)
        assert pickle.loads(pickle.dumps(codec)) == codec
        assert codec() == codec
        if "block" in codec.options():
            assert codec(block=64).get_config() == {**codec.get_config(), "block": 64}
            assert codec(block=64) != codec(block=128)


def unbiased(codec, x: np.ndarray, draws: int = 4000) -> float:
    """Largest deviation of the mean decoded value from `x`, in standard errors of its own."""
    seen = np.stack([codec.decode(codec.encode(x, key=k)) for k in range(draws)]).astype(np.float64)
    error = np.maximum(seen.std(axis=0) / np.sqrt(draws), 1e-4 * np.abs(x).max())
    return float((np.abs(seen.mean(axis=0) - x) / error).max())
