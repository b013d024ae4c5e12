"""The erasure code: it is that of RFC 5170, and every backend gives what the definition says."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_gradflow.comm import _ldpc, ldpc_schedule
from hvd_gradflow.comm.ldpc import MAX_SEED, LdpcStaircase
from hvd_gradflow.comm.ldpc_numpy import MinimalStandard
from tests.comm.ldpc_blocks import SHAPES, SYMBOL_BYTES, block, damaged, fit, outcome, same_outcome

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
