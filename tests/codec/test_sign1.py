"""sign1 against an oracle with exact sums; blocks of zeros, of a few zeros, of extremes; forged payloads."""

import math

import numpy as np
import pytest
from codec.conformance import FLOAT_MAX, same_bits, values

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import _kernels, backend, wire

pytestmark = pytest.mark.usefixtures("platform")
CODEC = codecs.get("sign1", block=32)


def back(x, **options):
    codec = codecs.get("sign1", **options)
    return codec.decode(codec.encode(np.asarray(x, np.float32)))


def table(payload, n, block=32):
    return payload[32 : 32 + 4 * -(-n // block)].copy().view(np.uint32)


@pytest.mark.parametrize("block", [32, 256, 4096])
def test_each_value_becomes_the_mean_magnitude_of_its_block(block):
    x = values(3 * block + 5, seed=1)
    y = back(x, block=block)
    for begin in range(0, x.size, block):
        part = x[begin : begin + block].astype(np.float64)
        mean = np.float32(math.fsum(np.abs(part)) / np.count_nonzero(part))
        expected = np.sign(part).astype(np.float32) * mean
        # The sum in double may differ from the exact one by its last bits, and the mean by its last one.
        np.testing.assert_allclose(y[begin : begin + block], expected, rtol=2.0**-23, atol=0)
        assert (y[begin : begin + block][part == 0] == 0).all()


def test_the_mean_is_the_scale_with_the_least_squared_error():
    x = values(256, seed=2).astype(np.float64)
    y = back(x).astype(np.float64)
    least = np.sum((x - y) ** 2)
    assert all(np.sum((x - factor * y) ** 2) > least for factor in (0.99, 1.01))


@pytest.mark.parametrize("value", [1e-45, 1e-40, 2.0**-126, 1e-30, 1.0, 1e30, float(FLOAT_MAX)])
@pytest.mark.parametrize("count", [1, 3, 32, 256, 300])
def test_equal_magnitudes_are_exact_at_any_size(value, count):
    x = np.full(count, value, np.float32)
    x[::3] *= -1
    residual = np.zeros_like(x)
    codec = codecs.get("sign1")
    assert same_bits(codec.decode(codec.encode(x, residual=residual)), x)
    assert not residual.any()


def test_a_mean_between_the_smallest_numbers_and_the_largest():
    tiny = np.array([1, 2, 4], np.uint32).view(np.float32)  # denormals, 2^-149 to 2^-147
    assert back(tiny).view(np.uint32).tolist() == [2, 2, 2]
    assert back([FLOAT_MAX, FLOAT_MAX, 1.0])[0] == np.float32(float(FLOAT_MAX) * 2 / 3)


def test_bits_are_spent_where_there_is_something():
    n = 4 * 32 + 9
    x = np.ones(n, np.float32)
    plain = CODEC.encode(x).size
    assert plain == CODEC.expected_bytes(n) == 32 + 5 * 4 + 4 * 4 + 2
    x[32:64] = 0  # a block of zeros has no bits
    assert CODEC.encode(x).size == plain - 4
    x[64] = np.inf  # nor has one that is not finite
    assert CODEC.encode(x).size == plain - 8
    x[0] = -0.0  # a block with a zero has a mask
    x[n - 1] = 0
    payload = CODEC.encode(x)
    assert payload.size == plain - 8 + 4 + 2 <= CODEC.max_encoded_size(n)
    assert (table(payload, n) >> 31).tolist() == [1, 0, 0, 0, 1]
    masks = np.ones(n, np.float32)
    masks[::32] = 0
    assert CODEC.encode(masks).size == CODEC.max_encoded_size(n)


def test_zeros_keep_their_residual_bit_for_bit():
    x = np.array([0.0, -0.0, 3.0, -1.0], np.float32)
    residual = np.array([0.0, -0.0, 0.0, 0.0], np.float32)
    codec = codecs.get("sign1")
    y = codec.decode(codec.encode(x, residual=residual))
    assert y.tolist() == [0, 0, 2, -2] and not np.signbit(y[:2]).any()
    assert residual.tolist() == [0, 0, 1, 1] and np.signbit(residual[:2]).tolist() == [False, True]


def test_error_feedback_delivers_what_signs_alone_do_not():
    x = np.concatenate([np.full(31, 0.1), [3.0]]).astype(np.float32)
    steps, residual, sent = 400, np.zeros(32, np.float32), np.zeros(32)
    for _ in range(steps):
        sent += CODEC.decode(CODEC.encode(x, residual=residual))
    np.testing.assert_allclose(sent / steps, x, atol=0.15)
    assert abs(CODEC.decode(CODEC.encode(x))[31] - 3.0) > 2  # one step alone is far off


def forged(change):
    """Status by the reference and the compiled decoder of a payload whose body was changed."""
    n = 3 * 32 + 9
    x = np.ones(n, np.float32)
    x[[3, n - 1]] = 0
    x[40] = -1
    payload = CODEC.encode(x)
    assert table(payload, n)[[0, 3]].tolist() == [0xBF800000] * 2  # blocks 0 and 3 have a mask
    body = bytearray(payload[32:].tobytes())
    body = change(body, 16) or body
    header = wire.Header.unpack(payload)
    fields = {**vars(header), "length": len(body), "crc": 0}
    crc = _kernels.crc32c(np.frombuffer(wire.Header(**fields).pack() + bytes(body), np.uint8))
    made = wire.Header(**{**fields, "crc": crc}).pack() + bytes(body)
    out = np.full(n, 7, np.float32)
    compiled = _kernels.decode(CODEC.spec(), np.frombuffer(made, np.uint8), out, False)
    assert compiled == wire.OK or (out == 7).all()
    return backend("numpy").status(CODEC.spec(), np.frombuffer(made, np.uint8), n), compiled


def put(at, value):
    def change(body, bits):
        body[bits + at if at >= 0 else at] = value

    return change


def entry(i, bits):
    def change(body, _):
        body[4 * i : 4 * i + 4] = np.uint32(bits).tobytes()

    return change


# Bits of the body: mask 4, signs 4 (block 0); signs 4, 4; mask 2, signs 2 (block 3, of 9 elements).
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda body, bits: None, wire.OK),
        (put(4, 0x02), wire.OK),  # another sign
        (put(4, 0x08), wire.BAD_CONTENT),  # a sign where the mask has a zero
        (lambda body, bits: body.__setitem__(slice(bits, bits + 4), b"\xff" * 4), wire.BAD_CONTENT),
        (lambda body, bits: body.__setitem__(slice(bits, bits + 8), b"\0" * 8), wire.BAD_CONTENT),
        (put(-1, 0x02), wire.BAD_CONTENT),  # filling of the signs, of the mask
        (put(-3, 0x02), wire.BAD_CONTENT),
        (entry(0, 0x3F800000), wire.BAD_CONTENT),  # the length does not fit: no mask, a mask, no bits
        (entry(1, 0xBF800000), wire.BAD_CONTENT),
        (entry(1, 0), wire.BAD_CONTENT),
        (entry(1, 0x7FC00000), wire.BAD_CONTENT),
        (entry(1, 0x7F800000), wire.BAD_CONTENT),  # infinite, other NaNs, zero with a mask
        (entry(1, 0x7FC00001), wire.BAD_CONTENT),
        (entry(0, 0xFFC00000), wire.BAD_CONTENT),
        (entry(0, 0x80000000), wire.BAD_CONTENT),
        (lambda body, bits: body[:-1], wire.BAD_CONTENT),
        (lambda body, bits: body + b"\0", wire.BAD_CONTENT),
        (lambda body, bits: body[:15], wire.BAD_LENGTH),
        (lambda body, bits: body + b"\0" * 64, wire.BAD_LENGTH),
    ],
)
def test_forged_bodies_are_refused(change, expected):
    assert forged(change) == (expected, expected)


def test_a_mask_of_all_or_nothing_is_refused_in_the_last_block():
    for mask in (b"\xff\x01", b"\0\0"):
        assert forged(lambda body, bits, mask=mask: body[:-4] + mask + b"\0\0") == (wire.BAD_CONTENT,) * 2
