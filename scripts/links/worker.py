"""A rank of the bench of links: `worker.py FOLDER CARRIER ...`, started by MPI on two nodes.

Carriers: datagrams (`udp`), MPI's messages (`mpi`), allreduces by datagrams, `exact` and with a `deadline`.
The ranks and the bench leave each other words in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mpi4py import MPI

from hvd_gradflow import config
from hvd_gradflow.comm import _transports as native
from hvd_gradflow.comm import udp
from hvd_gradflow.reduce import _engine
from hvd_gradflow.reduce.agreement import exchange
from links.reducing import ByReducer
from links.streams import ByTransport
from links.words import Words

# Messages of 32 KiB under way: 1 MB by TCP, more than links of the bench and their queues hold; it repairs by
# itself what is lost. By datagrams twice that: one that is lost three times must not stop the others.
BY_TCP, BY_DATAGRAMS = 32, 64


def made(comm, carrier):
    """Return a carrier; collective. A deadline is written as ``deadline:5``, in milliseconds."""
    kind, _, deadline_ms = carrier.partition(":")
    if kind == "udp":
        where = MPI.Get_processor_name()
        tell = lambda value, what: exchange(comm, value, 60, what)  # noqa: E731
        return ByTransport(
            comm.rank, udp.connect(comm.rank, [[0], [1]], where, config.load(), tell), BY_DATAGRAMS
        )
    if kind == "mpi":
        return ByTransport(
            comm.rank, native.Borrowed(_engine.mpi_transport(MPI._addressof(comm.Dup()))), BY_TCP
        )
    return ByReducer(comm, float(deadline_ms or 0))


def main(folder, names):
    """Obey orders until there is none."""
    comm, words = MPI.COMM_WORLD, Words(Path(folder))
    carriers = {name.partition(":")[0]: made(comm, name) for name in names}
    while True:
        words.say(f"ready{comm.rank}")
        order = words.hear("plan")
        if not order:
            break
        words.say(f"connected{comm.rank}")
        found = carriers[order["carrier"]].move(order, words.hear("go"))
        if comm.rank == 1:
            words.say("found", found)
        words.number += 1
    for carrier in carriers.values():
        if isinstance(carrier, ByReducer):
            carrier.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
