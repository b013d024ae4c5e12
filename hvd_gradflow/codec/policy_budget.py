"""Which codec for which tensor, so that the total error is least within a number of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


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
    """Choose one way for each tensor: least total error within `budget` bytes, by greedy steps.

    Every tensor starts at its smallest choice and climbs the lower convex hull of its choices; the step with
    the largest decrease of error per byte comes first (Shoham and Gersho 1988). Ties go to the name that
    sorts first, so that equal input gives equal output on every rank. Where even the smallest choices exceed
    the budget, they are what is returned.
    """
    hulls = {name: _hull(options[name]) for name in sorted(options)}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(c.bytes for c in chosen.values())
    steps = [
        (-_gain(low, high), name, level, high)
        for name, hull in hulls.items()
        for level, (low, high) in enumerate(pairwise(hull), start=1)
    ]
    stopped = set()  # a tensor whose next step did not fit takes no later one
    for _, name, _, high in sorted(steps, key=lambda step: step[:3]):
        cost = high.bytes - chosen[name].bytes
        if name in stopped or cost > left:
            stopped.add(name)
            continue
        chosen[name], left = high, left - cost
    return chosen


def _gain(low: Choice, high: Choice) -> float:
    return (low.error - high.error) / (high.bytes - low.bytes)


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The choices on the lower convex hull of error over bytes, from the smallest to the most exact."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.bytes, c.error, c.codec)):
        if hull and choice.error >= hull[-1].error:
            continue
        if hull and choice.bytes == hull[-1].bytes:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return hull
