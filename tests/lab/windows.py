"""Reduce many arrays at once: prints the most chunks under way to a peer, and by how much each rank grew.

`windows.py MEGABYTES`; the arrays themselves are there before, so growth is the reducer's own.
"""

from __future__ import annotations

import sys

import numpy as np
import psutil
from mpi4py import MPI

from hvd_gradflow.reduce import Reducer

comm = MPI.COMM_WORLD
units = int(sys.argv[1])
arrays = [np.full(250_000, comm.rank + i, np.float32) for i in range(units)]
comm.allgather(b"")  # connections are there
process = psutil.Process()
before = process.memory_info().rss
with Reducer(comm) as reducer:
    handles = [reducer.allreduce_async(a, f"unit {i}", out=a) for i, a in enumerate(arrays)]
    for handle in handles:
        handle.wait(timeout=120)
    good = all((a == i + (comm.size - 1) / 2).all() for i, a in enumerate(arrays))
    # What a unit is described with counts too, so it is the growth at its end that is looked at.
    growth = process.memory_info().rss - before
    found = comm.gather((reducer.counters()["peak_under_way"], growth / 1e6, good))
if comm.rank == 0:
    peaks, megabytes, right = zip(*found, strict=True)
    print(f"window {max(peaks)}, growth {max(megabytes):.1f} MB, right {all(right)}", flush=True)
