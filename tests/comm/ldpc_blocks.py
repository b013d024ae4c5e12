"""Codes and blocks that the tests of the erasure code share."""

import numpy as np

from hvd_gradflow.comm.ldpc import LdpcStaircase
from hvd_gradflow.errors import ErasureError

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
