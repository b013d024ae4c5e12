"""Programs that must end in an error, one a mode: ``torch_faults.py MODE``."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.torch import Compression

torch.set_num_threads(1)


def wrapped(hvd, model, bind=None, **options):
    bind = hvd.__name__ == "horovod.torch" if bind is None else bind
    compression = Compression.int8.bind(model) if bind else Compression.int8
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return hvd.DistributedOptimizer(sgd, model.named_parameters(), compression=compression, **options)


def train(hvd, model, opt, steps=1):
    for _ in range(steps):
        opt.zero_grad()
        sum(p.sum() for p in model.parameters()).backward()
        opt.step()


def other_size(hvd):
    """17 elements here, 18 there: of a small tensor, which no codec touches, and of a large one."""
    large = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(large + 17 + hvd.rank()))})
    train(hvd, model, wrapped(hvd, model))


def other_order(hvd):
    """Two optimizers, created in another order on rank 1."""
    models = [nn.Linear(64, 64), nn.Linear(64, 32)]
    order = [0, 1] if hvd.rank() == 0 else [1, 0]
    opts = {i: wrapped(hvd, models[i]) for i in order}
    train(hvd, models[0], opts[0])


def other_clipping(hvd):
    """Rank 1 would clip to something else, and its weights would go another way."""
    model = nn.Linear(64, 64)
    train(hvd, model, wrapped(hvd, model, clip_grad_norm=1.0 + hvd.rank()))


def other_transport(hvd):
    """A second optimizer, which rank 1 would have by datagrams."""
    for choice in (Compression.int8, Compression.int8(transport="udp") if hvd.rank() else Compression.int8):
        model = nn.Linear(64, 64)
        bound = choice.bind(model) if hvd.__name__ == "horovod.torch" else choice
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        train(hvd, model, hvd.DistributedOptimizer(sgd, model.named_parameters(), compression=bound))


def never(hvd):
    """Rank 1 takes no step."""
    model = nn.Linear(64, 64)
    opt = wrapped(hvd, model)
    train(hvd, model, opt, 2)
    if hvd.rank() == 1:
        time.sleep(60)
    train(hvd, model, opt)


def ended(hvd):
    """Rank 1 ends in peace before rank 0 makes its optimizer: Horovod finalizes MPI on both."""
    if hvd.rank() == 1:
        sys.exit(0)
    time.sleep(3)
    wrapped(hvd, nn.Linear(64, 64))


def stopped(hvd):
    """Rank 1 is stopped while rank 0 waits for a token in Horovod."""
    model = nn.Linear(64, 64)
    opt = wrapped(hvd, model)
    train(hvd, model, opt, 2)
    if hvd.rank() == 1:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    train(hvd, model, opt)


def crash(hvd):
    """Rank 1 raises between two steps."""
    model = nn.Linear(64, 64)
    opt = wrapped(hvd, model)
    train(hvd, model, opt, 2)
    if hvd.rank() == 1:
        raise RuntimeError("out of data")
    train(hvd, model, opt)


def join_bound(hvd):
    """A rank joins, and the others' compressor is bound."""
    model = nn.Linear(64, 64)
    opt = wrapped(hvd, model)
    if hvd.rank() == hvd.size() - 1:
        hvd.join()
    train(hvd, model, opt)


def cannot_carry(hvd):
    """This Horovod cannot carry what we compress: one sentence says so; `none` and `fp16` are Horovod's."""
    model = nn.Linear(64, 64)
    for bind in (False, True):
        try:
            wrapped(hvd, model, bind)
        except UnsupportedError as error:
            print(f"REFUSED {error}", flush=True)
        else:
            raise AssertionError("not refused")
    for choice in (Compression.none, Compression.fp16):
        opt = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression=choice
        )
        train(hvd, model, opt)
        hvd.allreduce(torch.ones(3), compression=choice)
    print("OK", flush=True)


if __name__ == "__main__":
    mode, path = sys.argv[1], sys.argv[2]
    if path == "dropin":
        import hvd_gradflow.torch as horovod
    else:
        import horovod.torch as horovod
    horovod.init()
    globals()[mode](horovod)
