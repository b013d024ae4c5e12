"""Reductions over two paths, of which one is dead, or dies."""

import os
import socket

import numpy as np
from mpi4py import MPI

from hvd_gradflow import config
from hvd_gradflow.comm import addresses
from hvd_gradflow.reduce import Reducer

comm = MPI.COMM_WORLD
node = int(socket.gethostname()[-1])
first = addresses.interfaces()["eth0"].split("/")[0]
settings = config.load(dict(os.environ)).with_options(udp_interfaces=f"{first},10.88.0.{node + 1}")
reducer = Reducer(comm, config=settings)
x = np.random.default_rng(comm.rank).standard_normal(200_000).astype(np.float32)
for _ in range(3):
    assert np.allclose(reducer.allreduce(x, "x", op="sum"), comm.allreduce(x), atol=1e-5)
counts = reducer.counters()
assert counts["udp_dead_paths"] >= 1, counts
reducer.close()
print("fine", flush=True)
