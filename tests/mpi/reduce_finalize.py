"""MPI is finalized under a running engine: the engine ends first, and later calls say so."""

from __future__ import annotations

import mpi4py

mpi4py.rc.finalize = False

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from hvd_gradflow.errors import GradflowError  # noqa: E402
from hvd_gradflow.reduce import Reducer  # noqa: E402

reducer = Reducer(MPI.COMM_WORLD)
reducer.allreduce(np.ones(5000, np.float32), "w", codec="int8")
MPI.Finalize()
try:
    reducer.allreduce(np.ones(5, np.float32), "w")
except GradflowError as error:
    print(f"refused: {error}", flush=True)
