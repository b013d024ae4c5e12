"""One allreduce of unmodified Horovod; each rank says where it is and what it got."""

from __future__ import annotations

import socket

import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.full((3,), float(hvd.rank() + 1)), op=hvd.Sum)
places = hvd.allgather_object((socket.gethostname(), hvd.local_rank(), hvd.local_size(), total.tolist()))
if hvd.rank() == 0:
    print(f"places {places}", flush=True)
