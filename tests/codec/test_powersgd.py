"""The codec powersgd by itself: arrays of one dimension stay whole, matrices become factors."""

import numpy as np
import pytest
from codec.conformance import FLOAT_MAX, CodecConformance, same_bits, values

from hvd_gradflow import codec as codecs
from hvd_gradflow.codec import powersgd, wire
from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.codec.powersgd import PowerSgd
from hvd_gradflow.errors import ConfigError, WireError
from hvd_gradflow.reduce import TensorSpec

CODEC = codecs.get("powersgd", rank=2, min_compression=1)


class TestOfVectors(CodecConformance):
    @pytest.fixture
    def codec(self):
        return CODEC


class OnMatrices(PowerSgd):
    """Encodes arrays of one dimension as matrices, as nearly square as their length allows."""

    def encode(self, x, **options):
        x = np.asarray(x)
        rows = (
            next(r for r in range(int(x.size**0.5), -1, -1) if r == 0 or x.size % r == 0)
            if x.ndim == 1
            else 0
        )
        return super().encode(x.reshape(rows, -1) if rows > 1 else x, **options)


@pytest.mark.usefixtures("platform")
class TestOfMatrices(CodecConformance):
    """What of the contract holds for low-rank factors, too. That is all but:

    - errors have no bound element by element (the tests below bound them by singular values);
    - a spike, or an element that is not finite, concerns the whole matrix, which is the codec's one block;
    - cut into pieces a matrix is another one;
    - the codec here is of a class of its own, which `from_config` does not know.
    """

    test_any_length_comes_back_within_the_bound = None
    test_any_scale_comes_back_finite_and_within_the_bound = None
    test_a_spike_harms_only_its_block = None
    test_not_finite_is_not_hidden_and_stays_in_its_block = None
    test_cut_at_a_block_border_it_gives_the_same = None
    test_it_is_a_value = None

    @pytest.fixture
    def codec(self):
        return OnMatrices(rank=2, min_compression=1)


def relative(got, expected):
    expected = expected.astype(np.float64).ravel()
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def of_rank(r, shape, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    rows = shape[0]
    matrix = rng.standard_normal((rows, r)) @ rng.standard_normal((r, int(np.prod(shape[1:]))))
    return (matrix / np.abs(matrix).max() * scale).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("scale", [1e-40, 1e-37, 1e-9, 1.0, 1e19, float(FLOAT_MAX)])
@pytest.mark.parametrize("shape", [(50, 60), (64, 8, 3, 3), (3, 3, 8, 64)])
def test_what_has_this_rank_arrives_whole(scale, shape):
    r = 1 if len(shape) == 4 else 2
    x = of_rank(r, shape, scale) if shape[0] != 3 else of_rank(1, (72, 64), scale).reshape(shape)
    payload = CODEC.encode(x)
    assert relative(CODEC.decode(payload), x) < (1e-3 if scale < 1e-38 else 1e-5)
    rows, columns = (50, 60) if len(shape) == 2 else (64, 72)
    assert payload.size == 32 + 24 + 4 * 2 * (rows + columns)


def test_more_iterations_come_nearer_to_the_best_approximation():
    x = values(6000, seed=1).reshape(60, 100)
    best = np.sqrt((np.linalg.svd(x.astype(np.float64))[1][2:] ** 2).sum()) / np.linalg.norm(
        x.astype(np.float64)
    )
    errors = [relative(CODEC.decode(CODEC(iterations=n).encode(x)), x) for n in (1, 3, 60)]
    assert errors[0] > errors[1] > errors[2] > best * (1 - 1e-6)
    assert errors[2] < best * 1.001


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_the_matrix_nan(bad):
    x, residual = values(600, seed=2).reshape(20, 30), values(600, seed=3)
    x[7, 7] = bad
    kept = residual.copy()
    payload = CODEC.encode(x, residual=residual)
    assert wire.Header.unpack(payload).flags == wire.FLAG_NONFINITE
    assert np.isnan(CODEC.decode(payload)).all()
    assert same_bits(residual, kept)
    x[7, 7] = 0
    assert np.isfinite(CODEC.decode(CODEC.encode(x, residual=residual))).all()


def test_spikes_and_extremes_stay_finite():
    for x in (np.full((40, 50), FLOAT_MAX), values(2000).reshape(40, 50), np.zeros((40, 50))):
        x = x.astype(np.float32)
        x[3, 3] = -FLOAT_MAX
        residual = x.reshape(-1).copy()
        assert np.isfinite(CODEC.decode(CODEC.encode(x, residual=residual))).all()
        assert np.isfinite(residual).all()


def test_a_short_payload_does_not_make_a_decoder_allocate_at_will(monkeypatch):
    n = 2**20
    body = np.zeros(2 * n + 6, np.float32)
    body[:6] = np.frombuffer(np.array([n, n, 1], np.uint64).tobytes(), np.float32)  # rows, columns, rank
    payload = wire.seal(CODEC.wire_id, body.tobytes(), count=n * n)  # 4 TiB in 8 MiB
    with pytest.raises(WireError, match=rf"announces {n * n} elements, expected at most"):
        CODEC.decode(payload)
    with pytest.raises(WireError, match="expected 6"):
        CODEC.decode_add(payload, np.zeros(6, np.float32))
    monkeypatch.setattr(powersgd, "MOST_ELEMENTS_PER_BYTE", 10)
    x = of_rank(1, (180, 181))
    payload = codecs.get("powersgd").encode(x)
    with pytest.raises(WireError, match=r"decode\(payload, out\)"):
        CODEC.decode(payload)
    assert relative(CODEC.decode(payload, np.empty(x.size, np.float32)), x) < 1e-5
    assert relative(CODEC.decode_add(payload, x.copy()).ravel(), 2 * x) < 1e-5


def test_small_matrices_and_vectors_go_whole():
    for shape in ((2, 3), (1, 500), (500, 1), (0, 7), (), (1000,)):
        x = values(int(np.prod(shape))).reshape(shape)
        assert not CODEC.takes(shape)
        assert same_bits(CODEC.decode(CODEC.encode(x)), x.ravel())
    assert codecs.get("powersgd").takes((10, 10)) and not codecs.get("powersgd", rank=3).takes((10, 10))
    assert codecs.get("powersgd", rank=3, min_compression=1).takes((10, 10))


@pytest.mark.parametrize("shape", [(20, 30), (600,)])
def test_damaged_payloads_are_refused(shape):
    payload = CODEC.encode(values(600, seed=5).reshape(shape))
    rng = np.random.default_rng(0)
    for at in {*range(60), *rng.integers(60, payload.size, 40).tolist()}:
        broken = payload.copy()
        broken[at] ^= 1 << rng.integers(8)
        with pytest.raises(WireError):
            CODEC.decode(broken)
    for size in (0, 31, 32, 40, payload.size - 1):
        with pytest.raises(WireError):
            CODEC.decode(payload[:size])
    with pytest.raises(WireError, match="600 elements, expected 599"):
        CODEC.decode(payload, out=np.zeros(599, np.float32))


def test_payloads_that_no_encoder_makes_are_refused():
    def body(rows, columns, rank, words, zero=0):
        return (
            np.array([rows, columns], np.uint64).tobytes()
            + np.array([rank, zero], np.uint32).tobytes()
            + words
        )

    good = np.ones(2 * 50, np.float32).tobytes()
    assert (CODEC.decode(wire.seal(11, body(20, 30, 2, good), count=600)) == 2).all()
    mixed = np.ones(100, np.float32)
    mixed[5] = np.nan
    for words, more in (
        (body(20, 30, 2, good[:-4]), {}),
        (body(20, 31, 2, good), {}),
        (body(30, 20, 3, good), {}),
        (body(20, 30, 2, good, zero=1), {}),
        (body(1, 600, 0, good), {}),
        (body(20, 30, 2, good), {"flags": 2}),
        (body(20, 30, 2, good), {"flags": 1}),
        (body(20, 30, 2, mixed.tobytes()), {"flags": 2}),
        (body(20, 30, 2, mixed.tobytes()), {}),
        (body(20, 30, 2, good), {"dtype": 9}),
        (b"", {}),
        (body(2**40, 2**40, 1, good), {}),
    ):
        with pytest.raises(WireError):
            CODEC.decode(wire.seal(11, words, count=600, **more))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "rank=0: expected an integer from 1"),
        ({"rank": 1.5}, "rank=1.5"),
        ({"rank": True}, "rank=True"),
        ({"iterations": 0}, "iterations=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"min_compression": 0.5}, "min_compression=0.5: expected a number, at least 1"),
        ({"min_compression": "2"}, "min_compression='2'"),
        ({"error_feedback": 1}, "error_feedback=1: expected True or False"),
    ],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        codecs.get("powersgd", **options)


def test_policies():
    specs = [TensorSpec("w", (100, 100)), TensorSpec("b", (5000,)), TensorSpec("narrow", (5000, 2))]
    table = as_policy("powersgd", rank=2).start(specs, "energy", 1024)
    assert {name: c.name for name, c in table.items()} == {"w": "powersgd", "b": "none", "narrow": "none"}
    for item in ("powersgd", CODEC):
        with pytest.raises(ConfigError, match=r"auto: .*in allow: what it costs depends on shapes"):
            as_policy("auto", allow=("none", item))
