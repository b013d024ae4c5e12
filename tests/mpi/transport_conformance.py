"""The conformance suite of transports, by MPI and by datagrams with keys that MPI handed out."""

import sys

from mpi4py import MPI

from hvd_gradflow import config
from hvd_gradflow.comm import _transports as native
from hvd_gradflow.comm import udp
from hvd_gradflow.reduce import _engine
from hvd_gradflow.reduce.agreement import exchange
from tests.comm import transports

comm = MPI.COMM_WORLD.Dup()
settings = config.load()
if sys.argv[1] == "mpi":
    transport = native.Borrowed(_engine.mpi_transport(MPI._addressof(comm)))
else:
    nodes = [[r] for r in range(comm.size)]
    transport = udp.connect(
        comm.rank, nodes, "here", settings, lambda value, what: exchange(comm, value, 60, what)
    )
for program in transports.PROGRAMS:
    program(transport, comm.rank, comm.size)
    transports.barrier(transport, comm.rank, comm.size)
    print(f"OK {program.__name__}\n", end="", flush=True)  # in one piece
everybody = comm.Ibarrier()
while not everybody.Test():  # who leaves says no more that it got the last word
    transport.progress()
transport.close()
