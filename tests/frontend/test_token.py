"""The token of the stock path: what its ratios tell."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_gradflow.errors import MismatchError
from hvd_gradflow.frontend import token


def reduced(size, identities, scale, ranks=None):
    ranks = range(size) if ranks is None else ranks
    return sum(token.make(identities[r], r) for r in ranks) * scale


@given(st.integers(1, 64), st.text(max_size=8), st.integers(0, 2**40), st.sampled_from([0.5, 1.0, 3.0, 7.25]))
def test_the_factor_is_found(size, name, sequence, predivide):
    identity = token.checksum(name, sequence, 17, "float32")
    same = [identity] * size
    average = reduced(size, same, 1 / predivide * (predivide / size))
    assert token.factor(average, identity, size, "w") == 1.0
    assert token.factor(reduced(size, same, 1.0), identity, size, "w") == size
    assert token.factor(reduced(size, same, predivide), identity, size, "w") == pytest.approx(
        size * predivide
    )


def test_every_missing_set_of_ranks_is_noticed():
    # With [rank, rank**2] in place of pseudo-random numbers, {0, 3, 5, 6} would pass for all of 0..7.
    identity = token.checksum("w", 3, 17, "float32")
    for size in range(2, 11):
        for ranks in chain.from_iterable(combinations(range(size), k) for k in range(1, size)):
            with pytest.raises(MismatchError):
                token.factor(reduced(size, [identity] * size, 1 / size, ranks), identity, size, "w")


def test_missing_ranks_are_named():
    identity = token.checksum("w", 3, 17, "float32")
    for missing in ([0], [4], [1, 3]):
        got = reduced(5, [identity] * 5, 0.2, [r for r in range(5) if r not in missing])
        with pytest.raises(MismatchError, match=rf"w: ranks \{str(missing)[:-1]}\] took no part"):
            token.factor(got, identity, 5, "w")


@pytest.mark.parametrize("other", [("v", 3, 17, "float32"), ("w", 4, 17, "float32"), ("w", 3, 18, "float32"),
                                   ("w", 3, 17, "float64")])  # fmt: skip
def test_another_tensor_is_noticed(other):
    identity = token.checksum("w", 3, 17, "float32")
    for size in (2, 3, 64):
        identities = [identity] * (size - 1) + [token.checksum(*other)]
        with pytest.raises(MismatchError, match="another name, sequence, size or dtype"):
            token.factor(reduced(size, identities, 1 / size), identity, size, "w")


def test_other_operations_are_noticed():
    identity = token.checksum("w", 3, 17, "float32")
    tokens = np.stack([token.make(identity, r) for r in range(4)])
    for got in (tokens.max(0), tokens.min(0), tokens.prod(0)):
        with pytest.raises(MismatchError, match="Average or Sum"):
            token.factor(got, identity, 4, "w")
    with pytest.raises(MismatchError):
        token.factor(np.full(3, np.nan), identity, 4, "w")
