"""Bytes on the link: what a node's interfaces have sent, by /proc/net/dev of its network namespace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DEVICES = Path("/proc/net/dev")
_SENT = 8  # columns before the bytes sent, after the name


def sent_bytes(text: str) -> int:
    """Return the bytes that all interfaces but the loopback have sent, from the text of /proc/net/dev.

    Raises
    ------
    ValueError
        If it is not such a text.
    """
    rows = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    if not rows:
        raise ValueError("no interface in the text of /proc/net/dev")
    return sum(int(columns.split()[_SENT]) for name, columns in rows if name.strip() != "lo")


class Link:
    """Counts what nodes send to each other.

    Between hosts the interfaces are read, whatever sends through them; RDMA goes past them. On one host,
    whose ranks share memory, there is only what a contender counts itself as given to MPI for other nodes.

    Parameters
    ----------
    rank : int
    hosts : sequence of str
        Host name by rank.
    nodes : sequence of sequence of int
        Ranks by node: those of a host, or fewer (GRADFLOW_RANKS_PER_NODE).
    """

    def __init__(self, rank: int, hosts: Sequence[str], nodes: Sequence[Sequence[int]]) -> None:
        self.nodes = nodes
        several = len(set(hosts)) > 1
        self.source = "interfaces" if several else "mpi" if len(nodes) > 1 else None
        self._leads = several and hosts.index(hosts[rank]) == rank  # one rank reads for its host
        self._leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]

    def transmitted(self) -> int:
        """Return bytes sent so far by this rank's host; 0 on a rank that does not read them."""
        return sent_bytes(_DEVICES.read_text()) if self._leads else 0

    def busiest(self, sent: Sequence[int], handed: Sequence[int] | None) -> int | None:
        """Return the bytes of the node that sent most, from those of each rank; None where nobody knows.

        Parameters
        ----------
        sent : sequence of int
            Differences of :meth:`transmitted`.
        handed : sequence of int, optional
            Bytes that the contender gave to MPI.
        """
        if self.source == "interfaces":
            return max(sent[leader] for leader in self._leaders)
        if self.source == "mpi" and handed is not None:
            return max(sum(handed[rank] for rank in ranks) for ranks in self.nodes)
        return None

    def idle_rate(self, comm: Any, seconds: float = 0.5) -> float | None:
        """Return bytes a second of the busiest host while nothing is exchanged; None without interfaces.

        Horovod's ranks ask each other every cycle whether there is something to do.
        """
        if self.source != "interfaces":
            return None
        comm.Barrier()
        before, began = self.transmitted(), time.perf_counter()
        time.sleep(seconds)
        rate = (self.transmitted() - before) / (time.perf_counter() - began)
        return max(comm.allgather(rate))
