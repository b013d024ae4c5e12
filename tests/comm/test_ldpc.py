"""The erasure code: every backend against the definition, and what it refuses."""

import hashlib
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_gradflow.comm import _ldpc, ldpc_schedule
from hvd_gradflow.comm.ldpc import MAX_PARITY, MAX_SEED, MAX_SOURCE, LdpcStaircase
from hvd_gradflow.comm.ldpc_numpy import MinimalStandard
from hvd_gradflow.errors import ConfigError, ErasureError

# (k, m, n1)
SHAPES = ((1, 1, 1), (1, 5, 3), (2, 1, 1), (3, 7, 7), (10, 3, 3), (40, 12, 7), (257, 300, 3))
SYMBOL_BYTES = (1, 7, 127, 128, 129, 1400, 65535)


def block(code, symbol_bytes, seed=0):
    """Return all k + m symbols of a random block."""
    source = np.random.default_rng(seed).integers(0, 256, (code.k, symbol_bytes), np.uint8)
    return np.vstack([source, code.encode(source)])


def damaged(symbols, received):
    """Return a copy with noise where nothing was received."""
    noise = np.random.default_rng(1).integers(0, 256, symbols.shape, np.uint8)
    return np.where(received[:, None], symbols, noise)


def outcome(code, symbols, received):
    """Return the decoded source, or what the error says."""
    try:
        return code.decode(symbols, received)
    except ErasureError as error:
        return str(error), error.missing, error.needed


def same_outcome(found, expected):
    if isinstance(expected, tuple):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected)


def fit(k, m, n1, seed, backend=None):
    return LdpcStaircase(k, m, min(n1, m), seed, backend=backend)


# ---- The code is RFC 5170's, and stays it -------------------------------------------------------------


def test_the_generators_check_value():
    """RFC 5170, section 5.7: the 10,000th number from seed 1 on."""
    assert _ldpc.minimal_standard(1, 10_000) == 1043618065
    reference = MinimalStandard(1)
    assert [reference.next() for _ in range(10_000)][-1] == 1043618065


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ((100, 25, 7, 0), "21714da8a7daa2b09bb09736c3e9fa1c"),
        ((256, 60, 7, 12345), "1bf374763b6aaad5ab516989ed31b6b8"),
        ((1000, 150, 7, 0), "74562bb387b7129441e3aa0eebd3176c"),
        ((1000, 150, 3, MAX_SEED), "73dc44341f1a1b18eb25b72343d0fec3"),
        ((7, 300, 2, 5), "ad375498319a1f874da6d95e920db42c"),
    ],
)
def test_golden_matrices(arguments, digest):
    """SHA-256 of the rows, as little-endian uint32: a peer of another release must have the same."""
    begins, symbols = LdpcStaircase(*arguments).matrix()
    found = hashlib.sha256(begins.astype("<u4").tobytes() + symbols.astype("<u4").tobytes()).hexdigest()
    assert found[:32] == digest


def test_a_matrix_by_hand():
    """k = 4, m = 3, n1 = 1, seed 1, whose numbers are (in parts of 2^31) 0.00, 0.13, 0.76, 0.46, 0.53, 0.22.

    Rows to choose from are 0 1 2 0. Of four the 0th; of 1 2 0 the 0th; of 2 0 the 1st; then 2 is left.
    Rows 1 and 2 have one symbol only, and get of the four symbols the 2nd and the 0th.
    """
    begins, symbols = LdpcStaircase(4, 3, 1, 1).matrix()
    rows = [symbols[a:b].tolist() for a, b in itertools.pairwise(begins)]
    assert rows == [[0, 2, 4], [1, 2, 4, 5], [0, 3, 5, 6]]


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 150, 7)])
def test_the_matrix_is_the_definitions(shape):
    for seed in (0, 1, 77, MAX_SEED):
        for found, expected in zip(
            LdpcStaircase(*shape, seed, backend="cpu").matrix(),
            LdpcStaircase(*shape, seed, backend="numpy").matrix(),
        ):
            np.testing.assert_array_equal(found, expected)


def test_seed_0_is_the_first():
    same, other = LdpcStaircase(50, 20, seed=1).matrix()[1], LdpcStaircase(50, 20, seed=2).matrix()[1]
    np.testing.assert_array_equal(LdpcStaircase(50, 20).matrix()[1], same)
    assert not np.array_equal(same, other)


def test_degrees():
    begins, symbols = LdpcStaircase(1000, 150).matrix()
    assert (np.bincount(symbols, minlength=1150)[:1000] == 7).all()
    assert np.diff(begins).max() - np.diff(begins)[1:].min() <= 2  # the staircase adds two


# ---- Backends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_backend_gives_the_same(ldpc_backend, shape):
    code, reference = (LdpcStaircase(*shape, 3, backend=b) for b in (ldpc_backend, "numpy"))
    rng = np.random.default_rng(shape[0])
    for symbol_bytes in SYMBOL_BYTES[:-1] if shape[0] < 100 else (7, 300):
        symbols = block(reference, symbol_bytes)
        np.testing.assert_array_equal(code.encode(symbols[: code.k]), symbols[code.k :])
        for loss in (0.0, 0.1, 0.3, 0.7, 1.0):
            received = rng.random(code.n) >= loss
            sent = damaged(symbols, received)
            same_outcome(outcome(code, sent, received), outcome(reference, sent, received))


def test_large_symbols(ldpc_backend):
    code = LdpcStaircase(20, 9, 4, backend=ldpc_backend)
    symbols = block(code, 65535)
    received = np.ones(code.n, bool)
    received[[0, 5, 19, 22]] = False
    np.testing.assert_array_equal(code.decode(damaged(symbols, received), received), symbols[:20])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_against_the_definition(data):
    """Any small code, any bytes, anything lost: the source, or the same error."""
    k, m = data.draw(st.integers(1, 40), "k"), data.draw(st.integers(1, 30), "m")
    n1, seed = data.draw(st.integers(1, 10), "n1"), data.draw(st.integers(0, MAX_SEED), "seed")
    code, reference = fit(k, m, n1, seed, "cpu"), fit(k, m, n1, seed, "numpy")
    symbol_bytes = data.draw(st.integers(1, 300), "symbol_bytes")
    symbols = block(reference, symbol_bytes, seed)
    np.testing.assert_array_equal(code.encode(symbols[:k]), symbols[k:])
    lost = data.draw(st.sets(st.integers(0, k + m - 1), max_size=m + 2), "lost")
    received = ~np.isin(np.arange(k + m), sorted(lost))
    sent = damaged(symbols, received)
    expected = outcome(reference, sent, received)
    same_outcome(outcome(code, sent, received), expected)
    if not isinstance(expected, tuple):
        np.testing.assert_array_equal(expected, symbols[:k])
        after = sent.copy()
        ldpc_schedule.run(code.decode_schedule(received), sent, after)
        np.testing.assert_array_equal(after[:k], symbols[:k])


def test_a_schedule_run_by_numpy_is_the_encoder():
    for shape in SHAPES:
        code = LdpcStaircase(*shape)
        symbols = block(code, 33)
        parity = np.full((code.m, 33), 0xA5, np.uint8)
        ldpc_schedule.run(code.encode_schedule(), symbols[: code.k], parity)
        np.testing.assert_array_equal(parity, symbols[code.k :])


# ---- Erasures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 150, 7)])
def test_any_single_erasure(ldpc_backend, shape):
    if ldpc_backend == "numpy" and shape[0] > 100:
        pytest.skip("slow; the definition is checked on small codes")
    code = LdpcStaircase(*shape, backend=ldpc_backend)
    symbols = block(code, 5)
    for esi in range(code.n):
        received = np.arange(code.n) != esi
        np.testing.assert_array_equal(
            code.decode(damaged(symbols, received), received), symbols[: code.k], err_msg=f"symbol {esi} lost"
        )


def test_random_erasures_at_the_limit():
    """k symbols arrive, or a few more: decoded where the definition's rank says so, and there alone."""
    code, reference = LdpcStaircase(60, 30, backend="cpu"), LdpcStaircase(60, 30, backend="numpy")
    symbols = block(code, 9)
    rng, decoded = np.random.default_rng(4), 0
    for extra in (0, 1, 2, 4):
        for _ in range(40):
            received = np.zeros(code.n, bool)
            received[rng.permutation(code.n)[: code.k + extra]] = True
            sent = damaged(symbols, received)
            found = outcome(code, sent, received)
            same_outcome(found, outcome(reference, sent, received))
            if not isinstance(found, tuple):
                decoded += 1
                np.testing.assert_array_equal(found, symbols[: code.k])
    assert 40 < decoded < 160


def test_blocks_of_a_thousand_at_10_percent_loss():
    code = LdpcStaircase(1000, 150)
    symbols = block(code, 140)
    rng = np.random.default_rng(5)
    for _ in range(40):
        received = rng.random(code.n) >= 0.1
        if received.sum() >= 1000 and code._code.plan(received.view(np.uint8))[0] == 0:
            np.testing.assert_array_equal(code.decode(damaged(symbols, received), received), symbols[:1000])
    # How often it fails, by the structure alone; the ideal code: 4.5e-4.
    counts = code._code.trials(round(0.1 * 2**32), 4000, 9)
    assert counts["trials"] == 4000 and counts["failed"] <= 12 < 3000 < counts["peeling"]


def test_all_parity_and_no_parity():
    code = LdpcStaircase(30, 40, 5)
    symbols = block(code, 11)
    everything = np.ones(code.n, bool)
    for lost in (slice(30, 70), slice(0, 0)):
        received = everything.copy()
        received[lost] = False
        np.testing.assert_array_equal(code.decode(damaged(symbols, received), received), symbols[:30])


@pytest.mark.parametrize("loss", [0.05, 0.5])
def test_inputs_stay_as_they_were(ldpc_backend, loss):
    code = LdpcStaircase(40, 20, backend=ldpc_backend)
    symbols = block(code, 100)
    received = np.random.default_rng(2).random(code.n) >= loss
    before, flags = symbols.copy(), received.copy()
    for array in (symbols, received):
        array.flags.writeable = False
    outcome(code, symbols, received)
    code.encode(symbols[: code.k])
    np.testing.assert_array_equal(symbols, before)
    np.testing.assert_array_equal(received, flags)
    every = np.ones(code.n, bool)
    source = code.decode(symbols, every)
    assert not np.shares_memory(source, symbols)
    np.testing.assert_array_equal(source, before[:40])


def test_strided_arrays():
    code = LdpcStaircase(40, 20)
    symbols = block(code, 64)
    wide = np.zeros((2 * code.n, 128), np.uint8)
    wide[::2, ::2] = symbols
    received = np.repeat(np.arange(code.n) % 7 != 3, 2)[::2]
    np.testing.assert_array_equal(code.encode(wide[: 2 * code.k : 2, ::2]), symbols[code.k :])
    np.testing.assert_array_equal(code.decode(wide[::2, ::2], received), symbols[: code.k])


# ---- Symbols as they come, and a last one that is short: what the transport does ----------------------


@pytest.mark.parametrize("symbol_bytes", [1, 7, 128, 200])
def test_order_and_duplicates_do_not_matter(symbol_bytes):
    code = LdpcStaircase(40, 20)
    symbols = block(code, symbol_bytes)
    received = np.arange(code.n) % 5 != 2
    esis = np.flatnonzero(received)
    plain = _ldpc.assemble(code._code, symbols, esis.astype(np.uint32), symbol_bytes)
    np.testing.assert_array_equal(plain[0], symbols[:40])
    rng = np.random.default_rng(1)
    for _ in range(5):
        order = rng.permutation(np.concatenate([esis, esis[:30], [60, 61, 2**32 - 1]])).astype(np.uint32)
        again, new = _ldpc.assemble(code._code, symbols, order, symbol_bytes)
        np.testing.assert_array_equal(again, plain[0])
        assert new == esis.size


def test_it_can_be_decoded_as_soon_as_the_rank_allows():
    code = LdpcStaircase(30, 20)
    rng = np.random.default_rng(3)
    for _ in range(20):
        order = rng.permutation(code.n).astype(np.uint32)
        answers = _ldpc.decodable_after(code._code, order)
        first = answers.index(True)
        assert first + 1 >= code.k and all(answers[first:])
        for count, answer in ((first, False), (first + 1, True)):
            received = np.isin(np.arange(code.n), order[:count]).view(np.uint8)
            assert (code._code.plan(received)[0] == 0) == answer


@pytest.mark.parametrize("symbol_bytes", [1, 7, 127, 128, 129, 300, 1400])
def test_a_short_last_symbol(ldpc_backend, symbol_bytes):
    """As if zeros were behind it; nothing beyond it is read or written."""
    code, native = LdpcStaircase(20, 12, 5, backend=ldpc_backend), LdpcStaircase(20, 12, 5, backend="cpu")
    for last in {1, symbol_bytes // 2, symbol_bytes - 1, symbol_bytes} - {0}:
        symbols = block(native, symbol_bytes)
        padded = symbols[:20].copy()
        padded[-1, last:] = 0
        expected = native.encode(padded)
        parity = np.empty_like(expected)
        code._code.encode(symbols[:20], parity, last)
        np.testing.assert_array_equal(parity, expected)
        if ldpc_backend == "numpy":
            continue
        sent = np.vstack([symbols[:20], parity])  # behind the last symbol there is something else
        for lost in ([19], [3], [3, 19, 7]):
            esis = np.setdiff1d(np.arange(code.n), lost).astype(np.uint32)
            found, _ = _ldpc.assemble(code._code, sent, esis, last)
            np.testing.assert_array_equal(found[:19], padded[:19])
            np.testing.assert_array_equal(found[19, :last], padded[19, :last])
            if 19 in lost:
                assert (found[19, last:] == 0xA5).all(), "written behind the last symbol"


# ---- Refusals -----------------------------------------------------------------------------------------


def test_what_is_missing_is_told(ldpc_backend):
    code = LdpcStaircase(100, 20, backend=ldpc_backend)
    received = np.ones(120, bool)
    received[:30] = False
    with pytest.raises(
        ErasureError,
        match=r"LdpcStaircase\(k=100, m=20, n1=7, seed=0\): 30 of 120 symbols are missing, 30 of them source"
        r" symbols that cannot be recovered: at least 10 more must arrive",
    ) as caught:
        code.decode(np.zeros((120, 8), np.uint8), received)
    assert (caught.value.missing, caught.value.needed) == (30, 10)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.missing, again.needed) == (str(caught.value), 30, 10)
    with pytest.raises(ErasureError, match="at least 10 more"):
        code.decode_schedule(received)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 5), "k=0: expected 1 to 8192"),
        ((MAX_SOURCE + 1, 5), "k=8193"),
        ((2**40, 5), "k=1099511627776"),
        ((5, 0), "m=0: expected 1 to 8192"),
        ((5, -1), "m=-1"),
        ((5, MAX_PARITY + 1), "m=8193"),
        ((5, 6), "n1=7 with m=6"),
        ((5, 20, 11), "n1=11: expected 1 to 10"),
        ((5, 20, 0), "n1=0"),
        ((5, 20, 7, -1), "seed=-1"),
        ((5, 20, 7, 2**31 - 1), "seed=2147483647"),
    ],
)
def test_codes_that_cannot_be(arguments, words):
    for backend in ("cpu", "numpy"):
        with pytest.raises(ConfigError, match=words):
            LdpcStaircase(*arguments, backend=backend)


def test_the_compiled_code_checks_by_itself():
    """The transport makes codes from what peers say."""
    for bad in ((0, 1, 1, 0), (9000, 1, 1, 0), (1, 0, 1, 0), (1, 9000, 1, 0), (9, 9, 11, 0), (9, 3, 4, 0)):
        with pytest.raises(ConfigError, match="LDPC code of k="):
            _ldpc.Code(*bad)
    with pytest.raises(ConfigError, match="seed is not between"):
        _ldpc.Code(9, 9, 3, 2**32 - 1)
    with pytest.raises(MemoryError, match="a size that cannot be"):
        _ldpc.Code(2, 1, 1, 0).encode(np.zeros((2, 4), np.uint8), np.zeros((1, 4), np.uint8), 5)
    with pytest.raises(ValueError, match="do not fit"):
        _ldpc.Code(2, 1, 1, 0).encode(np.zeros((1, 4), np.uint8), np.zeros((1, 4), np.uint8), 4)


def test_the_largest_code_is_bounded():
    code = LdpcStaircase(MAX_SOURCE, MAX_PARITY, 10)
    source = np.random.default_rng(0).integers(0, 256, (MAX_SOURCE, 3), np.uint8)
    symbols = np.vstack([source, code.encode(source)])
    received = np.random.default_rng(1).random(code.n) >= 0.2
    np.testing.assert_array_equal(code.decode(damaged(symbols, received), received), source)


@pytest.mark.parametrize("wrong", [1.5, "7", None, True], ids=["float", "text", "none", "bool"])
def test_arguments_of_another_type(wrong):
    with pytest.raises(TypeError, match="expected an int"):
        LdpcStaircase(10, wrong)


def test_a_backend_that_does_not_exist():
    with pytest.raises(ConfigError, match="unknown backend 'gpu'; known: cpu, numpy"):
        LdpcStaircase(10, 10, backend="gpu")


def test_arrays_that_do_not_fit(ldpc_backend):
    code = LdpcStaircase(10, 8, backend=ldpc_backend)
    every = np.ones(18, bool)
    for bad in (np.zeros((9, 4), np.uint8), np.zeros(10, np.uint8), np.zeros((10, 4, 1), np.uint8)):
        with pytest.raises(ValueError, match=r"source has shape .*, expected \(10, symbol_bytes\)"):
            code.encode(bad)
    for symbol_bytes in (0, 2**20 + 1):
        with pytest.raises(ValueError, match=f"symbols of {symbol_bytes} bytes"):
            code.encode(np.broadcast_to(np.zeros((), np.uint8), (10, symbol_bytes)))
    with pytest.raises(TypeError, match="source is of int8"):
        code.encode(np.zeros((10, 4), np.int8))
    with pytest.raises(TypeError, match="source is of list"):
        code.encode([[0] * 4] * 10)
    with pytest.raises(ValueError, match="symbols has shape"):
        code.decode(np.zeros((10, 4), np.uint8), every)
    for bad, kind in (
        (np.ones(17, bool), ValueError),
        (np.ones(18, np.uint8), TypeError),
        ([True] * 18, TypeError),
    ):
        with pytest.raises(kind, match="received"):
            code.decode(np.zeros((18, 4), np.uint8), bad)


def test_the_level_is_the_environments():
    with pytest.raises(ConfigError, match="GRADFLOW_SIMD='sse9': this machine has"):
        _ldpc.set_simd_level("sse9")
