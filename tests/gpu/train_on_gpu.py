"""Two ranks train on one GPU; prints a digest of the weights and the bytes sent, for each compression.

``GRADFLOW_DEVICE`` says where gradients are encoded: the digests must not tell. With ``cpu`` in place of
``cuda`` and ``GRADFLOW_DEVICE=emulated`` it runs on the emulator.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums in every run

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "mpi")]

import hvd_gradflow.torch as hvd  # noqa: E402

where = sys.argv[1]
if where == "cpu":
    import emulated_gpu  # noqa: F401
hvd.init()
torch.use_deterministic_algorithms(True)


class Late(torch.autograd.Function):
    """Makes the gradients of what comes before it late: something slow is queued in front of them."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if where == "cuda":
            torch.cuda._sleep(50_000_000)
        return gradient.clone()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(300, 700), nn.Linear(700, 400)
        self.last = nn.Linear(400, 40).bfloat16()

    def forward(self, x):
        x = Late.apply(torch.relu(self.first(x)))
        return self.last(torch.relu(self.second(x)).bfloat16()).float()


def train(compression) -> None:
    torch.manual_seed(0)
    model = Network().to(where)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        model.named_parameters(),
        compression=compression,
    )
    before = hvd.wire_counters()["wire_bytes"]
    torch.manual_seed(hvd.rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(32, 300).to(where)).square().mean().backward()
        optimizer.step()
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().float().cpu().numpy().tobytes())
    everywhere = hvd.allgather_object(digest.hexdigest())
    assert len(set(everywhere)) == 1, everywhere
    if hvd.rank() == 0:
        sent = hvd.wire_counters()["wire_bytes"] - before
        print(f"WEIGHTS {compression} {digest.hexdigest()} {sent}", flush=True)


for name in ("none", "fp16", "int8", "log4", "deadzone", "sign1"):
    train(getattr(hvd.Compression, name))
train(hvd.Compression.wavelet(where="always"))
