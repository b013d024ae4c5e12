"""Which codec for which tensor, so that the total error is least within a number of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

PINNED = 3  # tensors whose choices are all tried,
COMBINATIONS = 300  # as long as they do not make more than these


@dataclass(frozen=True)
class Choice:
    """One way to send a tensor: its bytes, and its weighted error."""

    codec: str
    bytes: int
    error: float


def cheapest(options: Mapping[str, Sequence[Choice]]) -> int:
    """Bytes of the smallest assignment there is."""
    return sum(min(c.bytes for c in choices) for choices in options.values())


def allocate(options: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, Choice]:
    """Choose one way for each tensor: least total error within `budget` bytes.

    For the few largest tensors every combination is tried; the others climb by greedy steps in what each
    combination leaves over (as Sahni 1975 does for knapsacks): most bytes are in few tensors, and greed
    alone would leave much of the budget unused where the last step of the largest does not fit. Equal
    errors go to fewer bytes, then to the names that sort first, so that equal input gives equal output on
    every rank. Where even the smallest choices exceed the budget, they are what is returned.
    """
    names = sorted(options, key=lambda name: (-max(c.bytes for c in options[name]), name))
    count, combinations = 0, 1
    for name in names[:PINNED]:
        combinations *= len(_efficient(options[name]))
        if combinations > COMBINATIONS:
            break
        count += 1
    pinned, others = names[:count], sorted(names[count:])
    rest = _Greedy({name: _hull(options[name]) for name in others})
    best, best_key = None, (float("inf"), 0)
    for combination in product(*(_efficient(options[name]) for name in pinned)):
        left = budget - sum(c.bytes for c in combination)
        if left < rest.least:
            continue
        chosen = rest.fill(left)
        everything = [*combination, *chosen.values()]
        key = (sum(c.error for c in everything), sum(c.bytes for c in everything))
        if key < best_key:
            best, best_key = {**dict(zip(pinned, combination)), **chosen}, key
    if best is None:
        best = {name: _efficient(options[name])[0] for name in names}
    return best


def allocate_in_buckets(
    options: Mapping[str, Sequence[Choice]], budget: int, bucket_bytes: int
) -> dict[str, Choice]:
    """As :func:`allocate`, where each codec that is chosen takes `bucket_bytes` for a bucket of its own."""
    buckets, chosen = 0, dict[str, Choice]()
    while buckets < len({choice.codec for choice in chosen.values()}) or not buckets:
        buckets += 1
        chosen = allocate(options, budget - buckets * bucket_bytes)
    return chosen


class _Greedy:
    """Steps up the hulls of several tensors, the largest decrease of error per byte first.

    Shoham and Gersho 1988; a tensor whose step does not fit stays where it is, the others go on.
    """

    def __init__(self, hulls: Mapping[str, list[Choice]]) -> None:
        self._start = {name: hull[0] for name, hull in hulls.items()}
        self.least = sum(c.bytes for c in self._start.values())
        steps = [
            (-_gain(low, high), name, level, high)
            for name, hull in hulls.items()
            for level, (low, high) in enumerate(pairwise(hull), start=1)
        ]
        self._steps = [(name, high) for _, name, _, high in sorted(steps, key=lambda step: step[:3])]

    def fill(self, budget: int) -> dict[str, Choice]:
        chosen, left, stopped = dict(self._start), budget - self.least, set()
        for name, high in self._steps:
            cost = high.bytes - chosen[name].bytes
            if name in stopped or cost > left:
                stopped.add(name)
                continue
            chosen[name], left = high, left - cost
        return chosen


def _gain(low: Choice, high: Choice) -> float:
    return (low.error - high.error) / (high.bytes - low.bytes)


def _efficient(choices: Sequence[Choice]) -> list[Choice]:
    """The choices that no other beats in both bytes and error, from the smallest to the most exact."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.bytes, c.error, c.codec)):
        if not kept or choice.error < kept[-1].error:
            kept.append(choice)
    return kept


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The choices on the lower convex hull of error over bytes, from the smallest to the most exact."""
    hull: list[Choice] = []
    for choice in _efficient(choices):
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return hull
