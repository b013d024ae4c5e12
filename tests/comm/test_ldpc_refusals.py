"""What the LDPC-Staircase code refuses, in which words, and its bounds."""

import pickle

import numpy as np
import pytest

from hvd_gradflow.comm import _ldpc
from hvd_gradflow.comm.ldpc import MAX_PARITY, MAX_SOURCE, LdpcStaircase
from hvd_gradflow.errors import ConfigError, ErasureError
from tests.comm.ldpc_blocks import damaged


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
