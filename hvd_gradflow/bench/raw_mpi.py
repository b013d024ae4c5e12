"""Plain MPI messages that move the bytes of an encoded allreduce: the fair yardstick of what a link gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Bytes. Open MPI sends so many at once over TCP; with 256 KiB, about which it asks the receiver first, both
# directions of a busy link together reached little more than half of the rate.
MESSAGE = 60 << 10
WINDOW = 32  # messages under way to a peer in each direction


def volumes(nodes: Sequence[Sequence[int]], rank: int, encoded: float) -> dict[int, int]:
    """Return the bytes that a rank sends to each other rank, and receives from it.

    As in our reduction: slice s of L, the most ranks of any node, is owned by local rank s mod L_k on node k,
    and between two nodes an N-th of it goes to its home and an N-th comes from there, in each direction.
    """
    most, node = max(map(len, nodes)), next(ranks for ranks in nodes if rank in ranks)
    found: dict[int, int] = {}
    each = round(2 * encoded / (len(nodes) * most))
    for s in range(most):
        if node[s % len(node)] != rank:
            continue
        for other in nodes:
            if other is not node:
                peer = other[s % len(other)]
                found[peer] = found.get(peer, 0) + each
    return found


class RawExchange:
    """Nonblocking messages of MESSAGE bytes, WINDOW of them under way to each peer in each direction."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._out = np.zeros(MESSAGE, np.uint8)
        self._in: dict[int, np.ndarray] = {}

    def exchange(self, bytes_by_peer: dict[int, int]) -> None:
        """Send and receive so many bytes with each peer; all ranks must call it with what fits together."""
        from mpi4py import MPI

        left: dict[tuple[int, bool], int] = {}
        requests: list[Any] = []
        what: list[tuple[int, bool, int]] = []

        def start(peer: int, sends: bool, slot: int) -> Any:
            count = min(left[peer, sends], MESSAGE)
            if not count:
                return MPI.REQUEST_NULL
            left[peer, sends] -= count
            if sends:
                return self._comm.Isend(self._out[:count], dest=peer)
            return self._comm.Irecv(self._in[peer][slot, :count], source=peer)

        for peer, count in bytes_by_peer.items():
            self._in.setdefault(peer, np.zeros((WINDOW, MESSAGE), np.uint8))
            for sends in (False, True):
                left[peer, sends] = count
                for slot in range(WINDOW):
                    requests.append(start(peer, sends, slot))
                    what.append((peer, sends, slot))
        while (done := MPI.Request.Waitany(requests)) != MPI.UNDEFINED:
            requests[done] = start(*what[done])
