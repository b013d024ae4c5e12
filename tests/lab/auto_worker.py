"""Steps of a stream under auto, until a file tells to stop; rank 0 prints what each step is encoded with."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hvd_gradflow.codec.policy import AutoPolicy
from hvd_gradflow.reduce import Reducer, TensorSpec

comm, stop = MPI.COMM_WORLD, Path(sys.argv[1])
rng = np.random.default_rng(comm.rank)
with Reducer(comm) as reducer:
    # Often enough for a test: measuring may take a third of the time.
    policy = AutoPolicy(allow=sys.argv[2], window=4, overhead=0.33)
    stream = reducer.stream([TensorSpec("w", (500, 500), "float32", "dense")], policy, scope="w")
    gradient = rng.standard_normal((500, 500)).astype(np.float32)
    k, going = 0, True
    while going:
        began = time.perf_counter()
        stream.submit("w", gradient).wait(timeout=60)
        k += 1
        tables = comm.allgather(stream.codecs())
        assert all(table == tables[0] for table in tables)
        going = comm.bcast(not stop.exists())
        if comm.rank == 0:
            print(f"step {k} {stream.codecs()['w'].name} {time.perf_counter() - began:.4f}", flush=True)
