"""Bits of deadzone's blocks: places or a mask, signs, then large codes as low bits and the rest in unary.

The unary part and its parameter are Rice's (R. F. Rice: Some practical universal noiseless coding techniques,
1979); the layout is docs/wire-format.md's.
"""

from __future__ import annotations

from itertools import pairwise

from hvd_gradflow.device.numpy_bits import Reader, Writer, demand
from hvd_gradflow.device.wire_deadzone import BLOCK, SUM_BITS

MAX_SHIFT = 100
MOST_PLACES = 5  # codes of a block up to which their places are sent, not a mask
SHIFTED, NONFINITE = 6, 7  # forms of a block that are not a number of codes


def _low_bits(total: int, count: int) -> int:
    """k, about the logarithm of the mean of `count` numbers with this sum."""
    k = 0
    while total >> (k + 1) >= count:
        k += 1
    return k


def put_block(w: Writer, codes: list[int], shift: int) -> None:
    """Write signed codes that are not all zero."""
    places = [i for i, code in enumerate(codes) if code]
    negative = [int(codes[i] < 0) for i in places]
    rest = [abs(codes[i]) - 1 for i in places]
    count = len(places)
    if shift:
        w.put(SHIFTED, 4)
        w.put(shift, 7)
    w.put(count if count <= MOST_PLACES else 0, 3)
    w.put(int(any(rest)), 1)
    k = _low_bits(sum(rest), count)
    if any(rest):
        w.put(min(k, 3), 2)
        if k >= 3:
            w.put(k, 5)
    if count <= MOST_PLACES:
        for i in places:
            w.put(i, 5)
    else:
        w.put_each([int(code != 0) for code in codes])
    w.put_each(negative)
    if not any(rest):
        return
    for b in range(k):
        w.put_each([r >> b & 1 for r in rest])
    high = [r >> k for r in rest]
    j = 0
    while high:
        j += 1
        w.put_each([int(h >= j) for h in high])
        high = [h for h in high if h >= j]


def get_block(r: Reader) -> tuple[list[int], int] | None:
    """Return the signed codes and the shift of a block, or None for one that is not finite."""
    form, large, shift = r.get(3), r.get(1), 0
    if form == NONFINITE and not large:
        return None
    if form == SHIFTED and not large:
        shift = r.get(7)
        demand(1 <= shift <= MAX_SHIFT)
        form, large = r.get(3), r.get(1)
    demand(form <= MOST_PLACES)
    k = 0
    if large:
        k = r.get(2)
        if k == 3:
            k = r.get(5)
            demand(3 <= k < SUM_BITS)
    if form:
        places = [r.get(5) for _ in range(form)]
        demand(all(a < b for a, b in pairwise(places)))
    else:
        places = [i for i, some in enumerate(r.get_each(BLOCK)) if some]
        demand(len(places) > MOST_PLACES)
    negative = r.get_each(len(places))
    rest = [0] * len(places)
    if large:
        for b in range(k):
            rest = [m + (bit << b) for m, bit in zip(rest, r.get_each(len(rest)))]
        alive, j = list(range(len(rest))), 0
        while alive:
            j += 1
            alive = [i for i, on in zip(alive, r.get_each(len(alive))) if on]
            demand(not alive or j << k <= 2**SUM_BITS)
            for i in alive:
                rest[i] += 1 << k
        demand(any(rest) and _low_bits(sum(rest), len(rest)) == k)
    codes = [0] * BLOCK
    for i, sign, m in zip(places, negative, rest):
        codes[i] = -(m + 1) if sign else m + 1
    return codes, shift
