"""The token of the stock path: three numbers that Horovod reduces in place of a gradient.

Rank r gives ``[c, w_r, v_r]``: c identifies the tensor (name, sequence, elements, dtype), w_r and v_r are
fixed pseudo-random integers of that rank. What comes back is ``s * sum`` over the ranks that took part, with
one factor s that holds op, prescale, postscale and 1/size together. The ratios do not depend on s: the second
to the third tells whether all ranks took part, the first to the second whether they agree on c. Then s
follows. All entries are integers below 2**32, so that sums are exact in float64 and ratios good to 1e-15.
"""

from __future__ import annotations

import hashlib
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from hvd_gradflow.errors import MismatchError

BYTES = 24
_TOLERANCE = 1e-11  # of ratios; s itself is a product of at most three rounded factors


def _number(text: str, low: int) -> int:
    """Return an integer in [low, 2 * low) that depends on all of `text`."""
    return low + int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % low


@cache
def _weights(rank: int) -> tuple[int, int]:
    return _number(f"w{rank}", 1 << 30), _number(f"v{rank}", 1 << 30)


def checksum(name: str, sequence: int, elements: int, dtype: str) -> int:
    """Return the number that stands for one reduction of one tensor."""
    return _number(f"{name}\0{sequence}\0{elements}\0{dtype}", 1 << 31)


def make(identity: int, rank: int) -> np.ndarray:
    """Return the token of `rank` for the reduction that `identity` (a :func:`checksum`) stands for."""
    return np.array([identity, *_weights(rank)], np.float64)


def factor(token: Any, identity: int, size: int, what: str) -> float:
    """Return what the average over all ranks must be multiplied by to be what Horovod was asked for.

    Parameters
    ----------
    token : array_like of 3 float64
        As it came back from Horovod.
    identity : int
        This rank's own checksum.
    size : int
        Number of ranks.
    what : str
        The tensor, for the error: name, sequence, elements.

    Raises
    ------
    MismatchError
        If a rank was missing, or another tensor met this one.
    """
    first, second, third = (float(x) for x in token)
    everyone = range(size)
    w, v = (sum(_weights(r)[i] for r in everyone) for i in (0, 1))
    if not _equal(second * v, third * w):
        raise MismatchError(f"{what}: {_who_took_part(second, third, size)}")
    if not _equal(first * w, second * identity * size):
        raise MismatchError(
            f"{what}: Horovod reduced it with another rank's tensor of another name, sequence, size or dtype:"
            " every rank must reduce the same gradients in the same steps"
        )
    scale = second / w * size
    return float(round(scale)) if _equal(scale, round(scale)) else scale


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= _TOLERANCE * max(abs(a), abs(b))


def _who_took_part(second: float, third: float, size: int) -> str:
    """Return a sentence on the token's ranks; up to two missing ranks are found by trying."""
    for count in (1, 2):
        for missing in combinations(range(size), count):
            rest = [_weights(r) for r in range(size) if r not in missing]
            if rest and _equal(second * sum(v for _, v in rest), third * sum(w for w, _ in rest)):
                return (
                    f"ranks {list(missing)} took no part in Horovod's reduction (hvd.join() was called?);"
                    " join works with hvd_gradflow as hvd, not with a bound compressor"
                )
    return (
        f"what Horovod returned for it is no sum over the {size} ranks: with a bound compressor op must be"
        " Average or Sum, and every rank must take part"
    )
