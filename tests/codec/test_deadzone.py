"""deadzone: its layout by hand, exact sums, hostile content, and payloads that no encoder makes."""

import numpy as np
import pytest
from codec.conformance import FLOAT_MAX, same_bits, values
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import _kernels, backend, wire
from hvd_gradflow.device import wire_deadzone as layout
from hvd_gradflow.errors import ConfigError, WireError

CODEC = codecs.get("deadzone")
HEADER = wire.HEADER_BYTES


def encode(x, step, codec=CODEC, **more):
    x = np.asarray(x, np.float32)
    return codec.encode_stepped(x, [x.size] if x.size else [], [step] if x.size else [], **more)


def resealed(payload):
    """The payload with its checksum made right again."""
    payload = payload.copy()
    payload[28:32] = 0
    payload[28:32] = np.frombuffer(np.uint32(_kernels.crc32c(payload)).tobytes(), np.uint8)
    return payload


def bits_of(payload):
    """The first group's blocks of a payload with one segment, as a string, first bit first."""
    groups = (wire.Header.unpack(payload).count + 1023) // 1024
    data = payload[HEADER + 12 + 2 * groups :][4 : int.from_bytes(payload[HEADER + 12 :][:2], "little")]
    return "".join(str(bit) for bit in np.unpackbits(data, bitorder="little"))


def number(value, width):
    """A number's bits, the lowest first."""
    return format(value, f"0{width}b")[::-1]


# ---- Layout -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("platform")
class TestLayout:
    def test_tables(self):
        x = np.zeros(32 * 40 + 5, np.float32)
        x[33], x[-1] = 1, 3
        payload = CODEC.encode_stepped(x, [32 * 35, x.size], [1.0, 0.5])
        body = payload[HEADER:].tobytes()
        tables = [2, 35, int(np.float32(1).view(np.uint32)), 6, int(np.float32(0.5).view(np.uint32))]
        assert body[:20] == np.array(tables, "<u4").tobytes()
        sizes = np.frombuffer(body[20:26], "<u2").tolist()
        assert sizes[:2] == [4 + 2, 0]
        assert 26 + sum(sizes) == len(body)
        assert body[26:30] == bytes([2, 0, 0, 0])  # only block 1 of the first group
        ends, steps = CODEC.steps(payload)
        assert (ends.tolist(), steps.tolist()) == ([32 * 35, x.size], [1.0, 0.5])
        assert wire.Header.unpack(payload).block_log2 == 5

    def test_one_code(self):
        x = np.zeros(32)
        x[9] = -1
        assert bits_of(encode(x, 1.0)) == number(1, 3) + "0" + number(9, 5) + "1" + "0" * 6

    def test_a_mask_from_six_on(self):
        x = np.zeros(32)
        x[[0, 2, 3, 5, 7, 31]] = (1, -1, 1, 1, -1, 1)
        mask = "".join(str(int(v != 0)) for v in x)
        expected = number(0, 3) + "0" + mask + "010010"
        assert bits_of(encode(x, 1.0)).rstrip("0") == expected.rstrip("0")

    def test_low_bits_and_runs(self):
        x = np.zeros(32)
        x[[4, 8]] = (6, -1)  # less one: 5 and 0; k = 1, since 5 >> 1 >= 2 > 5 >> 2
        expected = number(2, 3) + "1" + number(1, 2) + number(4, 5) + number(8, 5) + "01"
        expected += "10"  # lowest bits
        expected += "10" + "1" + "0"  # 5 >> 1 is 2: it goes on twice, then ends
        assert bits_of(encode(x, 1.0)) == expected + "0" * (-len(expected) % 8)

    def test_a_spike_shifts_its_block(self):
        x = np.zeros(32)
        x[0] = 2.0**20
        q, shift = 2**11, 9
        found = bits_of(encode(x, 1.0))
        assert found.startswith(number(6, 4) + number(shift, 7) + number(1, 3) + "1" + number(3, 2))
        assert CODEC.decode(encode(x, 1.0))[0] == q * 2.0**shift

    def test_zeros_cost_next_to_nothing(self):
        assert encode(np.zeros(10 * 1024), 1.0).size == HEADER + 12 + 20
        x = np.full(10 * 1024, 0.49, np.float32)
        residual = np.zeros_like(x)
        assert encode(x, 1.0, residual=residual).size == HEADER + 12 + 20
        assert same_bits(residual, x)
        assert encode(x, 0.0, residual=residual).size == HEADER + 12 + 20
        assert same_bits(residual, x + x)

    def test_the_offset_is_where_one_begins(self):
        for offset in (0.0, 0.25, 0.4, 0.5):
            below = np.nextafter(np.float32(1 - offset), np.float32(0))
            x = np.array([1 - offset + 1e-6, below - np.float32(1e-6), -(2 - offset + 1e-6)], np.float32)
            assert CODEC.decode(encode(x, 1.0, CODEC(offset=offset))).tolist() == [1, 0, -2]

    def test_not_even_a_minus_changes_where_no_code_is(self):
        acc = np.full(64, -0.0, np.float32)
        x = np.zeros(64, np.float32)
        x[3] = 1
        CODEC.decode_add(encode(x, 1.0), acc)
        CODEC.add_codes(encode(x, 1.0), [64], [1.0], acc)
        assert acc[3] == 2
        assert np.signbit(np.delete(acc, 3)).all()

    def test_a_block_that_is_not_finite(self):
        x, acc = values(100), np.ones(100, np.float32)
        x[40] = np.inf
        payload = encode(x, 0.1)
        CODEC.add_codes(payload, [100], [0.1], acc)
        assert np.isnan(acc[32:64]).all()
        assert np.isfinite(np.delete(acc, np.s_[32:64])).all()
        again = CODEC.encode_codes(acc, [100], [0.1])
        assert np.isnan(CODEC.decode(again)[32:64]).all()


# ---- Options and steps of its own ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"similarity": 1.0}, "similarity=1.0: expected a number between 0 and 1"),
        ({"similarity": float("nan")}, "similarity=nan"),
        ({"target_ratio": 1}, "target_ratio=1: expected a number above 1"),
        ({"target_ratio": 2048}, "target_ratio=2048: expected a number above 1 and below 2048, at which all"),
        ({"step": 0}, "step=0: expected a number above 0"),
        ({"step": float("inf")}, "step=inf"),
        ({"step": "1"}, "step='1'"),
        ({"step": True}, "step=True"),
        ({"step": 1, "similarity": 0.9}, "similarity and step exclude each other"),
        ({"offset": 0.6}, "offset=0.6: expected a number from 0 to 0.5"),
        ({"offset": None}, "offset=None"),
        ({"second": "never"}, "second='never': expected one of auto, exact, requantize"),
        ({"domain": "time"}, "domain='time': expected one of energy, normalized"),
        ({"block": 64}, "unknown option 'block'"),
    ],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        codecs.get("deadzone", **options)


def test_asking_for_something_else_replaces_what_was_asked_for():
    assert CODEC.control == ("similarity", 0.985)
    half = CODEC(step=0.5)
    assert half.control == ("step", 0.5)
    assert half(target_ratio=30).control == ("target_ratio", 30.0)
    assert half(offset=0.3).control == ("step", 0.5)
    assert half(step=None).control == ("similarity", 0.985)
    with pytest.raises(ConfigError, match="exclude each other"):
        half(similarity=0.9, target_ratio=3)


def test_the_specification():
    spec = CODEC(target_ratio=30, second="requantize", offset=0.25).spec()
    assert (spec["id"], spec["bits"], spec["rounding"], spec["block"]) == (8, 0, 0, 32)
    assert layout.unpack_params(spec["params"]) == (2, 30.0, 2, 0.25)
    value, rest = spec["params"]
    assert np.uint64(value).view(np.float64) == 30.0
    assert rest == 2 | 2 << 8 | int(np.float32(0.25).view(np.uint32)) << 32
    for params in (
        (value, 3),
        (value, 3 << 8),
        (value, int(np.float32(0.6).view(np.uint32)) << 32),
        (0, 0),
        (int(np.float64(np.nan).view(np.uint64)), 0),
    ):
        for name in ("cpu", "numpy"):
            with pytest.raises(ConfigError, match="codec specification"):
                backend(name).max_encoded_size({**spec, "params": params}, 10)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("fed", [False, True])
def test_it_finds_the_step_for_a_similarity(fed):
    x, residual = values(3000, seed=1), values(3000, seed=2, scale=0.4) * np.float32(fed)
    total = (x + residual).astype(np.float64)
    for similarity in (0.8, 0.95, 0.985, 0.999):
        left = residual.copy()
        y = CODEC(similarity=similarity).decode(CODEC(similarity=similarity).encode(x, residual=left))
        lost = ((total - y) ** 2).sum() / (total**2).sum()
        assert similarity <= np.sqrt(1 - lost) < similarity + 0.02 * (1 - similarity) + 1e-4
    assert same_bits(left, (x + residual) - y)


@pytest.mark.usefixtures("platform")
def test_it_finds_the_step_for_a_ratio():
    x = values(20000, seed=3)
    for ratio in (5, 30, 100):
        assert ratio <= 4 * x.size / CODEC(target_ratio=ratio).encode(x).size < 1.05 * ratio


@pytest.mark.usefixtures("platform")
def test_a_step_counts_in_root_mean_squares():
    x = np.array([3, -4, 0, 0] * 50, np.float32)
    _, steps = CODEC.steps(CODEC(step=0.5).encode(x))
    assert steps.tolist() == [1.25]
    assert CODEC.steps(CODEC(step=2).encode(np.full(9, FLOAT_MAX, np.float32)))[1].tolist() == [
        np.float32(3e38)
    ]


def test_expected_bytes():
    x = values(65536, seed=4)
    for ratio in (8, 20, 50):
        codec = CODEC(target_ratio=ratio)
        assert codec.encode(x).size == pytest.approx(codec.expected_bytes(x.size), rel=0.05)
    assert CODEC.expected_bytes(1) < CODEC.max_encoded_size(1)
    # Of a similarity what Gaussian values would need: more than most gradients do.
    assert 2 < 8 * CODEC.expected_bytes(10**6) / 10**6 < 3
    assert codecs.get("log4").expected_bytes(1000) == codecs.get("log4").max_encoded_size(1000)


# ---- Sums of integers -----------------------------------------------------------------------------------

INTEGERS = st.one_of(st.just(0), st.integers(-3, 3), st.integers(1 - 2**22, 2**22 - 1))
BLOCKS = st.lists(st.lists(INTEGERS, min_size=32, max_size=32), max_size=5)


@settings(max_examples=200, deadline=None)
@given(BLOCKS, st.integers(0, 31), st.floats(2.0**-149, 2.0**100, width=32))
def test_integers_come_back_exactly(blocks, cut, step):
    codes = np.array([q for block in blocks for q in block], np.float32)[cut:]
    segments = ([codes.size], [step]) if codes.size else ([], [])
    payload = CODEC.encode_codes(codes, *segments)
    assert same_bits(CODEC.add_codes(payload, *segments, np.zeros_like(codes)), codes + np.float32(0))
    assert same_bits(CODEC.decode(payload), codes * np.float32(step) + np.float32(0))


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 2500),
    ranks=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    step=st.sampled_from([0.05, 0.7, 5.0]),
)
def test_sums_do_not_depend_on_the_order(n, ranks, seed, step):
    rng = np.random.default_rng(seed)
    border = 32 * int(rng.integers(1, 40))
    segments = ([border, n], [step, step / 3]) if border < n else ([n], [step])
    x = [rng.laplace(size=n).astype(np.float32) for _ in range(ranks)]
    payloads = [CODEC.encode_stepped(part, *segments) for part in x]
    forwards, backwards = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for a, b in zip(payloads, reversed(payloads)):
        CODEC.add_codes(a, *segments, forwards)
        CODEC.add_codes(b, *segments, backwards)
    assert same_bits(forwards, backwards)
    steps = np.repeat(np.float32(segments[1]), np.diff(segments[0], prepend=0))
    total = CODEC.decode(CODEC.encode_codes(forwards, *segments))
    assert same_bits(total, forwards * steps)
    apart = np.sum([CODEC.decode(p).astype(np.float64) for p in payloads], axis=0)
    np.testing.assert_allclose(total, apart, rtol=1e-5, atol=1e-5)


HOSTILE = {
    "constant": np.full(3000, 0.7),
    "alternating": np.resize([FLOAT_MAX, -FLOAT_MAX], 3000),
    "a spike": np.where(np.arange(3000) == 1500, 1e30, 0.0),
    "at the threshold": np.resize([0.6, -0.6, 1.6, -1.6], 3000),
    "far larger than foreseen": values(3000) * 1e6,
    "not finite": np.where(np.arange(3000) % 33 == 0, np.nan, 1.0),
    "subnormal": values(3000) * 1e-42,
    "huge": np.full(3000, 3.4e38),
    "one large in each block": np.where(np.arange(3000) % 32 == 5, 4000.0, 1.0),
    "half large": np.resize([1.0, 4096.0], 3000),
    "powers": np.resize(2.0 ** np.arange(-20, 40), 3000),
}


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("content", HOSTILE)
def test_hostile_content(content):
    x = HOSTILE[content].astype(np.float32)
    for step in (0.0, 1e-45, 1e-38, 1e-3, 1.0, 1e15, float(FLOAT_MAX)):
        for segments in (([x.size], [step]), ([*range(32, x.size, 32), x.size], [step] * 94)):
            residual = np.zeros_like(x)
            payload = CODEC.encode_stepped(x, *segments, residual=residual)
            assert payload.size <= CODEC.max_encoded_size(x.size)
            y = CODEC.decode(payload)
            blocks = np.add.reduceat(~np.isfinite(x), np.arange(0, x.size, 32)) == 0
            finite = np.repeat(blocks, 32)[: x.size]
            assert np.isfinite(y[finite]).all()
            assert np.isnan(y[~finite]).all()
            assert np.isfinite(residual).all()
            codes = CODEC.add_codes(payload, *segments, np.zeros_like(x))
            # So many ranks can have the same content before their sum overflows; of codes that are not
            # shifted, the sum is exact and fits into what is sent.
            assert np.abs(codes[finite], dtype=np.float64).max(initial=0) * 2**14 < FLOAT_MAX
            with np.errstate(all="ignore"):
                total = CODEC.encode_codes(codes * np.float32(1000), *segments)
            assert total.size <= CODEC.max_encoded_size(x.size)
            assert np.isfinite(CODEC.decode(total)[finite]).all()


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), low=st.integers(0, 22), high=st.integers(0, 22))
def test_no_sum_needs_more_than_the_bound(seed, low, high):
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(min(low, high), max(low, high), 96)
    codes = np.floor(2.0**exponents).astype(np.float32) * rng.choice([-1, 1], 96).astype(np.float32)
    ends = [32, 64, 96]
    payload = CODEC.encode_codes(codes, ends, [1.0] * 3)
    assert payload.size <= CODEC.max_encoded_size(96)
    assert same_bits(CODEC.decode(payload), codes)


# ---- Payloads that are not right ------------------------------------------------------------------------


@pytest.mark.usefixtures("platform")
def test_other_steps_are_refused():
    x = values(100)
    payload = CODEC.encode_stepped(x, [64, 100], [0.5, 0.25])
    for ends, steps in (
        ([64, 100], [0.5, 0.26]),
        ([64, 100], [0.5, 0.0]),
        ([32, 100], [0.5, 0.25]),
        ([100], [0.5]),
    ):
        acc = np.ones(100, np.float32)
        with pytest.raises(
            WireError, match=r"the steps 0\.5, 0\.25, expected others: the ranks' steps differ"
        ):
            CODEC.add_codes(payload, ends, steps, acc)
        assert (acc == 1).all()


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("ends", "steps", "words"),
    [
        ([100], [0.5, 0.5], "1 ends and 2 steps"),
        ([96], [0.5], "segments end at 96, expected 100"),
        ([], [], "segments end at 0, expected 100"),
        ([33, 100], [1, 1], "segment 0 ends at 33"),
        ([64, 64, 100], [1, 1, 1], "segment 1 ends at 64"),
        ([132], [1], "segment 0 ends at 132"),
        ([100], [-1.0], "step -1.0 of segment 0"),
        ([100], [-0.0], "step -0.0 of segment 0"),
        ([100], [np.nan], "step nan"),
        ([100], [np.inf], "step inf"),
    ],
)
def test_impossible_segments_are_refused(ends, steps, words):
    x = values(100)
    with pytest.raises(ValueError, match=words):
        CODEC.encode_stepped(x, ends, steps)
    with pytest.raises(ValueError, match=words):
        CODEC.encode_codes(x, ends, steps)
    with pytest.raises(ValueError, match=words):
        CODEC.add_codes(encode(x, 1.0), ends, steps, np.zeros(100, np.float32))


def test_a_residual_of_another_size_is_refused():
    with pytest.raises(ValueError, match="residual has 99"):
        encode(values(100), 1.0, residual=np.zeros(99, np.float32))


def test_tables_that_do_not_fit_are_damage():
    payload = encode(values(100), 0.5)
    with pytest.raises(WireError, match="payload of codec log4"):
        CODEC.steps(codecs.get("log4").encode(values(100)))
    for at in (0, 4, 11, 12):
        damaged = payload.copy()
        damaged[HEADER + at] ^= 0xFF
        with pytest.raises(WireError, match="tables of steps do not fit"):
            CODEC.steps(damaged)
    with pytest.raises(WireError, match="tables of steps do not fit"):
        CODEC.steps(payload[:-1])


def statuses(payload, n, spec=None):
    """By the reference and on every level; nothing may be written but after OK, nor beyond n."""
    spec = spec or CODEC.spec()
    found = [backend("numpy").status(spec, payload, n)]
    before = _kernels.simd_level()
    for level in _kernels.simd_levels():
        _kernels.set_simd_level(level)
        for add in (False, True):
            room = np.full(n + 64, 7, np.float32)
            found.append(_kernels.decode(spec, payload, room[:n], add))
            assert (room[n:] == 7).all()
            assert found[-1] == wire.OK or (room == 7).all()
    _kernels.set_simd_level(before)
    return found


def block_payload(bits, n=32, step=1.0, filled=1):
    """A sealed payload of one segment and one group with these bits."""
    data = filled.to_bytes(4, "little") + np.packbits([int(b) for b in bits], bitorder="little").tobytes()
    tables = layout.write_tables(np.array([n], np.uint64), np.array([step], np.float32), [len(data)])
    return codecs.wire.seal(8, tables + data, count=n, block_log2=5)


ONE = number(1, 3) + "0" + number(9, 5) + "1"
MASK = number(0, 3) + "0" + "1" * 6 + "0" * 26 + "0" * 6


@pytest.mark.parametrize(
    ("bits", "options", "good"),
    [
        (ONE, {}, True),
        (MASK, {}, True),
        (number(6, 4) + number(100, 7) + ONE, {}, True),
        (number(6, 4) + number(0, 7) + ONE, {}, False),  # a shift of 0 is not sent
        (number(6, 4) + number(101, 7) + ONE, {}, False),
        (number(6, 4) + number(1, 7) + number(7, 4), {}, False),
        (number(6, 4) + number(100, 7) + ONE, {"step": 1e9}, False),  # the step is not finite
        (ONE, {"step": 0.0}, False),
        (ONE, {"n": 9}, False),  # beyond the last element
        (ONE, {"n": 10}, True),
        (ONE, {"filled": 0}, False),
        (ONE, {"filled": 2}, False),
        (ONE + ONE, {"filled": 3, "n": 64}, True),
        (ONE, {"filled": 3, "n": 64}, False),  # bits are missing
        (ONE + "0" * 6 + "0" * 8, {}, False),  # a byte too many
        (ONE + "1", {}, False),  # filling bits
        (number(2, 3) + "0" + number(9, 5) + number(9, 5) + "00", {}, False),
        (number(2, 3) + "0" + number(9, 5) + number(8, 5) + "00", {}, False),
        (number(0, 3) + "0" + "1" * 5 + "0" * 27 + "0" * 5, {}, False),  # five have places
        (number(6, 3) + "1" + "0" * 60, {}, False),
        (number(7, 3) + "1", {}, False),
        (number(7, 4), {}, False),  # without the flag in the header
        (number(1, 3) + "1" + number(0, 2) + number(9, 5) + "0" + "10", {}, True),  # 2
        (number(1, 3) + "1" + number(0, 2) + number(9, 5) + "0" + "0", {}, False),  # not large
        (number(1, 3) + "1" + number(0, 2) + number(9, 5) + "0" + "110", {}, False),  # k should be 1
        (number(1, 3) + "1" + number(1, 2) + number(9, 5) + "0" + "0" + "10", {}, True),  # 3
        (number(1, 3) + "1" + number(3, 2) + number(2, 5) + number(9, 5) + "0" + "00" + "10", {}, False),
        (number(1, 3) + "1" + number(3, 2) + number(22, 5) + number(9, 5) + "0" * 23 + "10", {}, False),
        (number(1, 3) + "1" + number(3, 2) + number(21, 5) + number(9, 5) + "0" * 22 + "10", {}, True),
    ],
)
def test_blocks_by_hand(bits, options, good):
    n = options.get("n", 32)
    status = wire.OK if good else wire.BAD_CONTENT
    assert set(statuses(block_payload(bits, **options), n)) == {status}


@settings(max_examples=400, deadline=None)
@given(
    data=st.data(),
    n=st.sampled_from([1, 31, 32, 33, 100, 1024, 1100, 2100]),
    summed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_forged_bodies(data, n, summed, seed):
    rng = np.random.default_rng(seed)
    ends = [*([32] if n > 32 else []), n]
    steps = [0.5, 1.5][: len(ends)]
    x = (rng.laplace(size=n) * 10.0 ** rng.uniform(-1, 5 * rng.random(), n)).astype(np.float32)
    if summed:
        payload = CODEC.encode_codes(np.clip(np.rint(x), -4e6, 4e6).astype(np.float32), ends, steps)
    else:
        payload = CODEC.encode_stepped(x, ends, steps)
    payload = payload.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        # Half of them in tables and first blocks, where damage shows in more ways.
        last = 8 * payload.size - 1
        bit = data.draw(st.integers(8 * HEADER, min(last, 8 * HEADER + 400)) | st.integers(8 * HEADER, last))
        payload[bit // 8] ^= np.uint8(1 << bit % 8)
    payload = resealed(payload)
    found = statuses(payload, n)
    assert len(set(found)) == 1
    assert found[0] in (wire.OK, wire.BAD_CONTENT)
    if found[0] == wire.OK:  # what is read back, an encoder would have written in the same way
        y, own = np.zeros((2, n), np.float32)
        backend("numpy").decode(CODEC.spec(), payload, y)
        CODEC.decode(payload, out=own)
        assert same_bits(y, own)
        CODEC.add_codes(payload, *CODEC.steps(payload), own)
    else:
        with pytest.raises(WireError, match="impossible header or body"):
            CODEC.decode(payload, out=np.zeros(n, np.float32))


def test_a_stochastic_flag_is_impossible():
    payload = encode(values(50), 1.0)
    payload[5] |= wire.FLAG_STOCHASTIC
    assert set(statuses(resealed(payload), 50)) == {wire.BAD_CONTENT}


def test_the_most_elements_in_a_byte():
    for n in (1, 1024, 1025, 10**6):
        assert n <= CODEC.max_elements_per_byte * encode(np.zeros(n), 1.0).size
        assert CODEC.decode(encode(np.zeros(n), 1.0)).size == n


@pytest.mark.parametrize("entropy", [False, True])
def test_no_payload_has_the_ratio_that_is_refused(entropy):
    zeros = np.zeros(2**22, np.float32)
    size = CODEC(entropy=entropy).encode(zeros).size
    assert 1000 < zeros.nbytes / size < 2048
