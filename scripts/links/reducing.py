"""Gradients that both ranks reduce in a turn of the bench of links, exactly or within a deadline."""

from __future__ import annotations

import time

import numpy as np

from hvd_gradflow import config
from hvd_gradflow.reduce import Reducer

ELEMENTS = 1 << 20  # of an array: with int8 a byte each on the wire, half to be added up, half of the result
AHEAD = 4  # arrays under way
SCALE = 1000  # elements of like size, as a gradient's layers and rows are


class ByReducer:
    """Allreduces of int8 by datagrams, some under way.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Of two ranks.
    deadline_ms : float
        0: exact.
    """

    def __init__(self, comm, deadline_ms):
        settings = config.load().with_options(transport="udp", deadline_ms=deadline_ms)
        self.reducer = Reducer(comm, "int8", config=settings, name=f"within {deadline_ms:g} ms")
        rng = np.random.default_rng(comm.rank)
        scales = np.repeat(rng.random(-(-ELEMENTS // SCALE)), SCALE)[:ELEMENTS]
        draw = (rng.standard_normal(ELEMENTS) * scales).astype(np.float32)
        self.arrays = [draw.copy() for _ in range(AHEAD)]

    def move(self, order, began):
        """Reduce until `bytes` went each way; both ranks do the same number, whatever the time.

        Returns
        -------
        dict
            `bytes` of elements that came in time, of the sum and of the result, in `seconds`; `missed`: the
            share of what was to be added up that did not.
        """
        steps = max(order["bytes"] // ELEMENTS, 1)
        before = self.reducer.counters()
        under_way = []
        for step in range(steps):
            if len(under_way) == AHEAD:
                under_way.pop(0).wait()
            k = step % AHEAD
            under_way.append(self.reducer.allreduce_async(self.arrays[k], f"gradient{k}"))
        for handle in under_way:
            handle.wait()
        seconds = time.monotonic() - began
        count = {key: value - before[key] for key, value in self.reducer.counters().items()}
        # As many results leave here as there are parts to be added up here: half of what is sent.
        missed = count["missed"] / (count["payloads"] / 2)
        return {"bytes": steps * ELEMENTS * (1 - missed / 2), "seconds": seconds, "missed": missed}

    def close(self):
        self.reducer.close()
