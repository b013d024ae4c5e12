"""The least time that an encoded allreduce can take on links of a given rate."""

from __future__ import annotations


def floor_seconds(encoded_bytes: float, nodes: int, rate: float) -> float:
    """Return 2 (N - 1) / N times the encoded tensor over the rate of a node's link.

    Each node must send N - 1 of N parts of its own, and get back as much (Patarasu and Yuan: Bandwidth
    optimal all-reduce algorithms for clusters of workstations, 2009); links carry both ways at once.

    Parameters
    ----------
    encoded_bytes : float
        Of the whole tensor.
    nodes : int
        With one there is no link: 0.
    rate : float
        Bits a second in each direction.
    """
    return 2 * (nodes - 1) / nodes * encoded_bytes * 8 / rate
