"""deadzone's entropy stage: the same codes in fewer bytes, on every backend, and nothing from forged ones."""

import struct

import numpy as np
import pytest
from codec.conformance import same_bits, values
from codec.test_backends_agree import KINDS, STEPS, make, on_every_level, run_stepped
from codec.test_deadzone import BLOCKS, HOSTILE, encode, resealed, statuses
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import backend, wire
from hvd_gradflow.device import numpy_range_coder as coding
from hvd_gradflow.device.numpy_bits import Writer
from hvd_gradflow.device.numpy_deadzone_model import UNARY, Model
from hvd_gradflow.errors import ConfigError, WireError

PACKED = codecs.get("deadzone")
CODEC = PACKED(entropy=True)
HEADER = wire.HEADER_BYTES
FRONT = HEADER + 12  # of a payload with one segment


def is_coded(payload):
    return bool(wire.Header.unpack(payload).flags & wire.FLAG_ENTROPY)


# ---- The option -------------------------------------------------------------------------------------------


def test_the_option():
    assert not PACKED.entropy
    value, rest = PACKED.spec()["params"]
    assert CODEC.spec()["params"] == (value, rest | 1 << 24)
    for wrong in (1, None, "yes"):
        with pytest.raises(ConfigError, match=f"entropy={wrong!r}: expected True or False"):
            codecs.get("deadzone", entropy=wrong)
    for name in ("cpu", "numpy"):
        with pytest.raises(ConfigError, match="unknown entropy stage"):
            backend(name).max_encoded_size({**CODEC.spec(), "params": (value, rest | 2 << 24)}, 10)


@pytest.mark.usefixtures("platform")
def test_the_step_for_a_ratio_counts_what_is_sent():
    x = values(5000, seed=3)
    for ratio in (8, 30):
        coded, packed = (codec(target_ratio=ratio).encode(x) for codec in (CODEC, PACKED))
        assert ratio <= 4 * x.size / coded.size < 1.05 * ratio
        assert CODEC.steps(coded)[1] < PACKED.steps(packed)[1]
    assert CODEC.steps(CODEC.encode(x))[1] == PACKED.steps(PACKED.encode(x))[1]


# ---- What it makes ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(("step", "saved"), [(0.3, 0.08), (1.0, 0.08), (3.0, 0.08)])
def test_fewer_bytes_with_the_same_content(step, saved):
    x = values(20000, seed=5) * np.repeat(10.0 ** np.linspace(-1, 0.5, 20), 1000).astype(np.float32)
    packed, coded = encode(x, step), encode(x, step, CODEC)
    assert is_coded(coded)
    assert not is_coded(packed)
    assert coded.size < (1 - saved) * packed.size
    for reader in (CODEC, PACKED):
        assert same_bits(reader.decode(coded), reader.decode(packed))
        assert [a.tolist() for a in reader.steps(coded)] == [[x.size], [np.float32(step)]]


def test_its_parts():
    x = values(1000, seed=6)
    payload = encode(x, 1.0, CODEC)
    (size,) = struct.unpack_from("<I", payload, FRONT)
    raw = payload[FRONT + 4 + size :]
    negative = np.signbit(x[CODEC.decode(payload) != 0])
    assert payload[HEADER:FRONT].tobytes() == encode(x, 1.0)[HEADER:FRONT].tobytes()
    assert raw.tobytes() == np.packbits(negative, bitorder="little").tobytes()  # nothing but signs, of these


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("content", HOSTILE)
def test_never_longer_and_the_same_content(content):
    x = HOSTILE[content].astype(np.float32)
    for step in (0.0, 1e-3, 1.0):
        for segments in (([x.size], [step]), ([*range(32, x.size, 32), x.size], [step] * 94)):
            left, own = np.zeros((2, x.size), np.float32)
            packed = PACKED.encode_stepped(x, *segments, residual=left)
            coded = CODEC.encode_stepped(x, *segments, residual=own)
            assert coded.size < packed.size if is_coded(coded) else same_bits(coded, packed)
            assert same_bits(left, own)
            assert same_bits(CODEC.decode(coded), PACKED.decode(packed))


@pytest.mark.usefixtures("platform")
def test_zeros_stay_packed_once_they_take_too_little():
    for n in (0, 1, 1000, 100_000):
        coded = encode(np.zeros(n), 1.0, CODEC)
        assert n <= CODEC.max_elements_per_byte * coded.size
        assert CODEC.decode(coded).size == n
    assert not is_coded(coded)


@settings(max_examples=60, deadline=None)
@given(BLOCKS, st.integers(0, 31), st.integers(1, 5), st.floats(2.0**-149, 2.0**100, width=32))
def test_integers_come_back_exactly(blocks, cut, times, step):
    codes = np.array([q for block in blocks * times for q in block], np.float32)[cut:]
    segments = ([codes.size], [step]) if codes.size else ([], [])
    payload = CODEC.encode_codes(codes, *segments)
    assert payload.size <= PACKED.encode_codes(codes, *segments).size
    assert same_bits(CODEC.add_codes(payload, *segments, np.zeros_like(codes)), codes + np.float32(0))


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.one_of(st.integers(0, 70), st.integers(71, 3000)),
    blocks=st.lists(st.sampled_from([1, 2, 31, 32, 33, 70]), max_size=6),
    steps=st.lists(st.sampled_from(STEPS), min_size=7, max_size=7),
    seed=st.integers(0, 2**32 - 1),
)
def test_same_bytes_on_all_backends(kind, n, blocks, steps, seed):
    rng = np.random.default_rng(seed)
    x, acc, residual = (make(k, n, rng) for k in (kind, "laplace", "laplace"))
    ends = [end for end in np.cumsum(blocks) * 32 if end < n] + [n] * (n > 0)
    ends, steps = np.array(ends, np.uint64), np.array(steps[: len(ends)], np.float32)
    spec = CODEC.spec()
    with np.errstate(all="ignore"):
        expected = run_stepped(spec, backend("numpy"), ends, steps, x, residual, acc)
    on_every_level(lambda kernels: run_stepped(spec, kernels, ends, steps, x, residual, acc), expected)


def test_carries_go_through_all_bytes():
    # Decisions against strong odds, in all orders: carries run through bytes that are 0xff.
    for seed in range(30):
        rng = np.random.default_rng(seed)
        bits = rng.random(3000) < rng.choice([0.001, 0.999, 0.5])
        coder, place = coding.Encoder(), ([16384], 0)
        for bit in bits.tolist():
            coder.put(bit, place)
        reader, place = coding.Decoder(coder.packed()), ([16384], 0)
        assert [reader.get(place) for _ in bits] == bits.tolist()
        reader.end()


# ---- Payloads that are not right --------------------------------------------------------------------------


def coded_payload(write, n=32, step=1.0, flags=wire.FLAG_ENTROPY, more=b""):
    """A sealed payload of one segment, with what `write(coder, raw, model)` writes."""
    coder, raw, model = coding.Encoder(), Writer(), Model()
    write(coder, raw, model)
    stream = coder.packed()
    tables = struct.pack("<IIf", 1, -(-n // 32), step)
    body = tables + struct.pack("<I", len(stream)) + stream + raw.packed() + more
    return codecs.wire.seal(8, body, count=n, block_log2=5, flags=flags)


def a_block(shift=0, special=False, codes=(1,), n=32, escape=None):
    def write(coder, raw, model):
        coder.put(True, (model.filled, model.block))
        coder.put(special, (model.special, 0))
        if special:
            raw.put(0, 1)
            raw.put(shift, 7)
        c = model.block
        for i in range(n):
            coder.put(i < len(codes), (model.coded, c))
        for q in codes:
            for j in range(min(q, UNARY)):
                coder.put(q - 1 > j, (model.more[c], j))
            if q > UNARY:
                raw.put(escape[0], 5)
                raw.put(escape[1], escape[0])
        raw.put_each([0] * len(codes))

    return write


def not_finite(coder, raw, model):
    coder.put(True, (model.filled, model.block))
    coder.put(True, (model.special, 0))
    raw.put(1, 1)


BOTH = wire.FLAG_ENTROPY | wire.FLAG_NONFINITE


@pytest.mark.parametrize(
    ("write", "options", "good"),
    [
        (a_block(), {}, True),
        (a_block(), {"step": 0.0}, False),
        (a_block(), {"flags": BOTH}, False),
        (a_block(), {"flags": wire.FLAG_ENTROPY | wire.FLAG_STOCHASTIC}, False),
        (a_block(), {"flags": wire.FLAG_ENTROPY | 8}, False),
        (a_block(), {"more": b"\0"}, False),
        (a_block(), {"n": 64}, False),  # decisions are missing
        (a_block(n=5), {"n": 5}, True),
        (a_block(n=6), {"n": 5}, False),
        (a_block(codes=()), {}, False),  # nothing in it
        (a_block(special=True, shift=100), {}, True),
        (a_block(special=True, shift=100), {"step": 1e9}, False),  # the step is not finite
        (a_block(special=True), {}, False),
        (a_block(special=True, shift=101), {}, False),
        (a_block(codes=[16]), {}, True),
        (a_block(codes=[17], escape=(0, 0)), {}, True),
        (a_block(codes=[17], escape=(21, 2**21 - 16)), {}, True),  # 2^22
        (a_block(codes=[17], escape=(21, 2**21 - 15)), {}, False),
        (a_block(codes=[17], escape=(22, 0)), {}, False),
        (a_block(codes=[17], escape=(31, 2**31 - 1)), {}, False),
        (not_finite, {"flags": BOTH}, True),
        (not_finite, {"flags": BOTH, "step": 0.0}, True),
        (not_finite, {}, False),
    ],
)
def test_blocks_by_hand(write, options, good):
    found = statuses(coded_payload(write, **options), options.get("n", 32))
    assert set(found) == {wire.OK if good else wire.BAD_CONTENT}


def test_lengths_that_do_not_fit():
    payload = encode(values(3000, seed=7), 1.0, CODEC)
    (size,) = struct.unpack_from("<I", payload, FRONT)
    for wrong in (0, 3, size - 1, size + 1, payload.size, 2**32 - 1):
        damaged = payload.copy()
        damaged[FRONT : FRONT + 4] = np.frombuffer(struct.pack("<I", wrong), np.uint8)
        assert set(statuses(resealed(damaged), 3000)) == {wire.BAD_CONTENT}
    for body in (b"", b"\0\0\0", b"\0\0\0\0", payload[FRONT:-1].tobytes(), payload[FRONT:].tobytes() + b"\0"):
        made = codecs.wire.seal(
            8, payload[HEADER:FRONT].tobytes() + body, count=3000, block_log2=5, flags=wire.FLAG_ENTROPY
        )
        assert set(statuses(made, 3000)) == {wire.BAD_CONTENT}


def test_more_elements_than_so_few_bytes_may_have():
    def nothing(coder, raw, model):
        for _ in range(3200):
            coder.put(False, (model.filled, model.block))
            model.end_block([])

    payload = coded_payload(nothing, n=102_400)
    assert payload.size * 512 < 102_400
    assert set(statuses(payload, 102_400)) == {wire.BAD_CONTENT}
    with pytest.raises(WireError, match="announces 102400 elements"):
        CODEC.decode(payload)


def test_other_steps_are_refused():
    payload = encode(values(300), 0.5, CODEC)
    assert is_coded(payload)
    for name in ("cpu", "numpy"):
        acc = np.ones(300, np.float32)
        ends, steps = np.array([300], np.uint64), np.array([0.6], np.float32)
        with pytest.raises(WireError, match=r"the steps 0\.5, expected others"):
            backend(name).add_codes(CODEC.spec(), ends, steps, payload, acc)
        assert (acc == 1).all()


def test_only_this_codec_has_the_flag():
    payload = codecs.get("none").encode(values(10))
    payload[5] |= wire.FLAG_ENTROPY
    with pytest.raises(WireError, match="impossible header"):
        codecs.get("none").decode(resealed(payload))


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    n=st.sampled_from([31, 33, 100, 1024, 1100, 2100]),
    summed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_forged_bodies(data, n, summed, seed):
    rng = np.random.default_rng(seed)
    ends = [*([32] if n > 32 else []), n]
    steps = [0.5, 1.5][: len(ends)]
    x = (rng.laplace(size=n) * 10.0 ** rng.uniform(-1, 3 * rng.random(), n)).astype(np.float32)
    if summed:
        payload = CODEC.encode_codes(np.clip(np.rint(x), -4e6, 4e6).astype(np.float32), ends, steps)
    else:
        payload = CODEC.encode_stepped(x, ends, steps)
    payload = payload.copy()
    payload[5] |= data.draw(st.sampled_from([0, 0, 0, wire.FLAG_ENTROPY]))  # perhaps of a packed one
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 5]))
    for _ in range(data.draw(st.integers(0, 3))):
        last = 8 * payload.size - 1
        bit = data.draw(st.integers(8 * HEADER, min(last, 8 * HEADER + 300)) | st.integers(8 * HEADER, last))
        payload[bit // 8] ^= np.uint8(1 << bit % 8)
    payload = payload[: payload.size - cut].copy()
    payload[16:24] = np.frombuffer(struct.pack("<Q", payload.size - HEADER), np.uint8)
    payload = resealed(payload)
    found = statuses(payload, n)
    assert len(set(found)) == 1
    assert found[0] in (wire.OK, wire.BAD_CONTENT)
    if found[0] == wire.OK:
        y, own = np.zeros((2, n), np.float32)
        backend("numpy").decode(CODEC.spec(), payload, y)
        CODEC.decode(payload, out=own)
        assert same_bits(y, own)
        CODEC.add_codes(payload, *CODEC.steps(payload), own)
