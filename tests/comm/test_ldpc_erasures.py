"""What the LDPC-Staircase code recovers, and how symbols may come."""

import numpy as np
import pytest

from hvd_gradflow.comm import _ldpc
from hvd_gradflow.comm.ldpc import LdpcStaircase
from tests.comm.ldpc_blocks import SHAPES, block, damaged, outcome, same_outcome

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
