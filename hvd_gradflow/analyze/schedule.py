"""Which steps of a run are looked at: the same ones on all ranks, without a word between them."""

from __future__ import annotations

from functools import lru_cache

DENSE = 64  # samples until their distance doubles; it does so again after each half as many
MOST = 256  # in all


@lru_cache(maxsize=64)  # asked for every gradient
def wanted(step: int, every: int) -> tuple[bool, bool]:
    """Return whether a step is sampled, and whether it follows one that is.

    Every `every`-th, the first included; after 64 samples every second of these, after 32 more every fourth,
    and so on, at most 256. The same on all ranks, since only the step counts.
    """

    def number(at: int) -> int | None:
        distance, first, left = every, 0, DENSE
        taken = 0
        while taken < MOST:
            if at < first + left * distance:
                return taken + (at - first) // distance if (at - first) % distance == 0 else None
            first, taken, left = first + left * distance, taken + left, DENSE // 2
            distance *= 2
        return None

    return number(step) is not None, step > 0 and number(step - 1) is not None
