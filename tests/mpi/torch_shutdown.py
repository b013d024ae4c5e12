"""hvd.shutdown() on one rank, while another one has not yet seen that the last reducer is closed."""

from __future__ import annotations

import time

import torch

import hvd_gradflow.torch as hvd
from hvd_gradflow.reduce import group

hvd.init()
total = hvd.allreduce(torch.ones(5000), compression=hvd.Compression.int8(), op=hvd.Sum, name="x")
assert torch.allclose(total, torch.full((5000,), float(hvd.size())))


def late(request, *arguments, finish=group.finish):
    """Look at the barrier when the other rank has gone on, and shut Horovod down, which ends MPI."""
    time.sleep(1.0)
    finish(request, *arguments)


if hvd.rank() == 1:
    group.finish = late
hvd.shutdown()
print("ended", flush=True)
