"""How many bits codes need whose content is known in kind: gradients resemble Laplace more than Gauss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise


@lru_cache(maxsize=64)
def laplace_bits(edges: Sequence[float], block: int) -> float:
    """Return the entropy of the codes of Laplace-distributed values, signs included, in bits an element.

    Magnitudes are exponential; of the largest, m, of n of them ``E exp(-e m)`` is
    ``n! Γ(1 + e) / Γ(n + 1 + e)``, since it is a sum of independent exponential variables with the rates
    1 to n (Rényi 1953). That is the share of the magnitudes above e m.

    Parameters
    ----------
    edges : sequence of float
        Magnitudes at which the codes 1, 2, ... begin, ascending, in units of the largest in a block; what is
        below the first is zero.
    block : int
        Elements of a block.
    """

    def share(edge: float) -> float:
        return math.exp(math.lgamma(block + 1) + math.lgamma(1 + edge) - math.lgamma(block + 1 + edge))

    beyond = [1.0, *map(share, edges), 0.0]
    parts = [low - high for low, high in pairwise(beyond)]
    return beyond[1] - sum(part * math.log2(part) for part in parts if part > 0.0)
