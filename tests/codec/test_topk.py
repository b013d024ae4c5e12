"""topk against a sort; ties, zeros, NaN; the code of indices; forged payloads; bounds; warm-up."""

import numpy as np
import pytest
from codec.conformance import same_bits, values
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import _kernels, backend, wire
from hvd_gradflow.device import wire_topk as layout
from hvd_gradflow.errors import ConfigError, WireError

TENTH = codecs.get("topk", ratio=0.1)
on_all = pytest.mark.usefixtures("platform")


def back(codec, x, residual=None):
    return codec.decode(codec.encode(np.asarray(x, np.float32), residual=residual))


@on_all
@pytest.mark.parametrize("ratio", [1e-9, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 7, 100, 1001, 5000])
def test_the_largest_arrive_exact_and_the_others_stay(ratio, n):
    x, owed = values(n, seed=n), values(n, seed=n + 1, scale=0.1)
    x[: n // 3] = np.round(x[: n // 3])  # many equal magnitudes
    residual, v = owed.copy(), x + owed
    y = back(codecs.get("topk", ratio=ratio), x, residual)
    order = np.argsort(-np.abs(v), kind="stable")[: int(np.ceil(ratio * n))]
    expected = np.zeros(n, np.float32)
    expected[order] = v[order]
    assert same_bits(y, expected + np.float32(0))
    assert same_bits(residual, np.where(y != 0, np.float32(0), v))


@on_all
def test_of_equal_magnitudes_the_first_are_sent_and_zeros_never():
    x = np.zeros(20, np.float32)
    x[[3, 9, 17]] = (2, -2, 2)
    assert np.flatnonzero(back(TENTH, x)).tolist() == [3, 9]
    x[[3, 9]] = -0.0
    assert TENTH.encode(x).size == 32 + 8 + 4 + 1 + 1  # one value, though there is room for two
    assert TENTH.encode(np.zeros(20, np.float32)).size == 32 + 8 + 1


@on_all
def test_what_is_not_finite_is_sent_beside_the_largest():
    x, residual = np.arange(1, 41, dtype=np.float32), np.full(40, 0.5, np.float32)
    x[:6] = (np.nan, np.inf, -np.inf, np.nan, np.inf, np.nan)
    y = back(TENTH, x, residual)
    assert same_bits(y[:6][[1, 2, 4]], x[:6][[1, 2, 4]]) and np.isnan(y[[0, 3, 5]]).all()
    assert y[6:].tolist() == [0] * 30 + [37.5, 38.5, 39.5, 40.5]
    assert residual.tolist() == [0.5] * 6 + (x[6:36] + 0.5).tolist() + [0] * 4


@on_all
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-3, 1e38])
def test_any_scale(scale):
    x = (np.clip(values(900, seed=3) / 4, -1, 1) * np.float64(scale)).astype(np.float32)
    y = back(TENTH, x)
    assert np.count_nonzero(y) == min(90, np.count_nonzero(x))
    assert np.abs(x[y == 0]).max() <= np.abs(y[y != 0]).min()


def test_an_error_that_is_kept_arrives():
    x = values(400, seed=5)
    residual, sent = np.zeros_like(x), np.zeros(400)
    for _ in range(200):
        sent += back(TENTH, x, residual)
    # What is owed is less than what had to be owed for an element to be among the largest.
    assert np.abs(sent / 200 - x).max() < 0.1


@settings(max_examples=150, deadline=None)
@given(
    n=st.one_of(st.integers(1, 300), st.integers(1, 2**40), st.integers(2**62 - 5, 2**62)),
    count=st.integers(0, 200),
    close=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_indices_come_back_from_every_backend(n, count, close, seed):
    rng = np.random.default_rng(seed)
    high = min(n, 2 * count + 1) if close else n
    indices = np.unique(rng.integers(0, high, count, dtype=np.int64))
    if n - high and indices.size and seed % 2:
        indices += n - high  # one long gap, in unary
    room = np.full(layout.max_index_bytes(n, indices.size), 0xAA, np.uint8)
    codes = [room[: backend(b).encode_indices(indices, n, room)].copy() for b in ("numpy", "cpu")]
    assert codes[0].tobytes() == codes[1].tobytes()
    for b in ("numpy", "cpu"):
        out = np.zeros(indices.size, np.int64)
        backend(b).decode_indices(codes[0], n, out)
        assert same_bits(out, indices)
        for wrong in (np.append(codes[0], np.uint8(0)), codes[0][:-1], codes[0] ^ np.uint8(128)):
            with pytest.raises(WireError, match="ascending indices"):
                backend(b).decode_indices(wrong, n, out)


def test_indices_that_have_no_code_are_refused():
    room = np.zeros(100, np.uint8)
    for wrong in ([3, 3], [4, 2], [-1, 2], [1, 10]):
        for b in ("numpy", "cpu"):
            with pytest.raises(ValueError, match="expected ascending ones below 10"):
                backend(b).encode_indices(np.array(wrong, np.int64), 10, room)


def test_no_body_is_longer_than_the_bound():
    for n in range(1, 200):
        for k in range(1, n + 1):
            b = layout.rice_parameter(n, k)
            longest = k * (1 + b) + ((n - k) >> b)  # all of the gaps in front of one
            assert 1 + (longest + 7) // 8 <= layout.max_index_bytes(n, k)
            assert 8 + 4 * k + 1 + (longest + 7) // 8 <= layout.max_body(n)
            assert b == 0 or 2**b <= n / k - 0.5 < 2 ** (b + 1)
    every = TENTH.for_sums().encode(np.ones(1000, np.float32))
    assert every.size == 32 + 8 + 4000 + 1 + 125 <= TENTH.max_encoded_size(1000)


@pytest.mark.parametrize("n", [64, 5000, 100_000])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 0.5])
def test_expected_bytes_and_the_cost_of_places(n, ratio):
    codec = codecs.get("topk", ratio=ratio)
    size = codec.encode(values(n, seed=7) + np.float32(1e-6)).size
    assert size == pytest.approx(codec.expected_bytes(n), rel=0.05)
    k = int(np.ceil(ratio * n))
    p = k / n
    entropy = -n * (p * np.log2(p) + (1 - p) * np.log2(1 - p))
    if k > 100:  # Rice codes of geometric gaps are within some percent of the entropy
        assert 8 * (size - 32 - 9 - 4 * k) < 1.06 * entropy


def forged(change):
    """Statuses of the reference and the compiled decoder; the body: k, 3 values, parameter 4, bits."""
    n, codec = 60, codecs.get("topk", ratio=0.05)
    x = np.zeros(n, np.float32)
    x[[2, 20, 59]] = (1, -2, np.inf)
    header, body = wire.Header.unpack(codec.encode(x)), bytearray(codec.encode(x)[32:].tobytes())
    assert (header.flags, body[0], body[20]) == (wire.FLAG_NONFINITE, 3, 4)
    body = change(body) or body
    fields = {**vars(header), "length": len(body), "crc": 0}
    crc = _kernels.crc32c(np.frombuffer(wire.Header(**fields).pack() + bytes(body), np.uint8))
    made = np.frombuffer(wire.Header(**{**fields, "crc": crc}).pack() + bytes(body), np.uint8)
    out = np.full(n, 7, np.float32)
    compiled = _kernels.decode(codec.spec(), made, out, False)
    assert compiled == wire.OK or (out == 7).all()
    return backend("numpy").status(codec.spec(), made, n), compiled


def put(at, data):
    return lambda body: body.__setitem__(slice(at, at + len(data)), data)


@on_all
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda body: None, wire.OK),
        (put(8, np.float32(5).tobytes()), wire.OK),
        (put(8, np.float32(0).tobytes()), wire.BAD_CONTENT),
        (put(8, np.float32(-0.0).tobytes()), wire.BAD_CONTENT),
        (put(8, np.uint32(0x7FC00000).tobytes()), wire.OK),
        (put(8, np.uint32(0x7FC00001).tobytes()), wire.BAD_CONTENT),
        (put(16, np.float32(1).tobytes()), wire.BAD_CONTENT),  # the flag says that something is not finite
        (put(0, b"\x02"), wire.BAD_CONTENT),
        (put(0, b"\x04"), wire.BAD_CONTENT),
        (put(0, b"\xff" * 8), wire.BAD_CONTENT),
        (put(0, b"\0\0\0\0\0\0\0\x40"), wire.BAD_CONTENT),
        (put(20, b"\x03"), wire.BAD_CONTENT),  # another parameter
        (put(21, b"\0"), wire.BAD_CONTENT),  # other gaps: the last index is too large, or bits are missing
        (put(21, b"\xff\xff"), wire.BAD_CONTENT),
        (lambda body: body + b"\0", wire.BAD_CONTENT),
        (lambda body: body[:-1], wire.BAD_CONTENT),
        (lambda body: body[:8], wire.BAD_LENGTH),
        (lambda body: body + b"\0" * 300, wire.BAD_LENGTH),
        (lambda body: body.__setitem__(-1, body[-1] | 0x80), wire.BAD_CONTENT),
    ],
)
def test_forged_bodies_are_refused(change, expected):
    assert forged(change) == (expected, expected)


@on_all
def test_a_body_is_not_shorter_than_what_it_makes_a_decoder_allocate():
    n = 50 << 20
    payload = TENTH.encode(np.zeros(n, np.float32))
    assert payload.size == 32 + 50
    out = np.ones(n, np.float32)
    TENTH.decode(payload, out=out)
    assert not out.any()


def test_the_ratio_falls_from_a_quarter_by_the_same_factor():
    codec = codecs.get("topk", ratio=0.001, warmup_steps=4)
    ratios = [codec.at_step(step).ratio for step in range(6)]
    assert ratios == pytest.approx([0.25, 0.0629, 0.01581, 0.003976, 0.001, 0.001], rel=1e-3)
    assert codec.at_step(9).spec() == codec.spec() == codecs.get("topk", ratio=0.001).spec()
    assert codecs.get("topk", ratio=0.3, warmup_steps=9).at_step(0).ratio == 0.3
    assert codecs.get("int8").at_step(3) == codecs.get("int8")


@pytest.mark.parametrize(
    "options", [{"ratio": 0}, {"ratio": 1.01}, {"ratio": "1%"}, {"ratio": float("nan")}, {"ratio": True}]
)
def test_impossible_ratios_are_refused(options):
    with pytest.raises(ConfigError, match=r"ratio=.*expected a number above 0 and at most 1"):
        codecs.get("topk", **options)


@pytest.mark.parametrize("steps", [-1, 2.5, True, "3"])
def test_impossible_warm_ups_are_refused(steps):
    with pytest.raises(ConfigError, match=r"warmup_steps=.*expected an integer, 0 or more"):
        codecs.get("topk", warmup_steps=steps)
