"""torch's DistributedDataParallel on Gloo: its default allreduce, its float16 hook, its PowerSGD hook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvd_gradflow.bench.data import Gradients
from hvd_gradflow.bench.turns import Contender

CODECS = ("fp32", "fp16", "powersgd1", "powersgd4")
_UNCOMPRESSED = 2  # first steps, the fewest with which PowerSGD feeds errors back and starts warm


def contenders(gradients: Gradients, codecs: list[str]) -> Iterator[Contender]:
    """Yield what DDP does with one bucket of gradients, by each hook."""
    for codec in codecs:
        yield _powersgd(gradients, codec) if codec.startswith("powersgd") else _hook(gradients, codec)


def wrapped(module: Any, codec: str, start: int = _UNCOMPRESSED) -> Any:
    """Return a module in DDP with the hook of a codec; ``fp32`` is what it does by itself.

    The first `start` steps of PowerSGD go uncompressed.

    PowerSGD gets all in one bucket: each of its buckets takes several operations, started as the one before
    ends, and on Gloo those of two buckets under way may start in another order on each rank, which crashes.
    """
    from torch.nn.parallel import DistributedDataParallel

    largest = sum(p.numel() for p in module.parameters()) * 4 / 2**20 + 1
    # Weights are equal already; gradients that are views of buckets save a copy.
    model = DistributedDataParallel(
        module,
        init_sync=False,
        gradient_as_bucket_view=True,
        bucket_cap_mb=largest if codec.startswith("powersgd") else None,
    )
    _register(model, codec, start)
    return model


def _register(model: Any, codec: str, start: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if codec == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif found := re.fullmatch(r"powersgd(\d+)", codec):
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(found[1]),
            start_powerSGD_iter=start,
            use_error_feedback=True,
            warm_start=True,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def first_steps(codec: str) -> int:
    """Return how many steps at the start go uncompressed."""
    return _UNCOMPRESSED if codec.startswith("powersgd") else 0


class _Bucket:
    """What a hook asks of DDP's bucket: its buffer."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def buffer(self) -> Any:
        return self._buffer


def _hook(gradients: Gradients, codec: str) -> Contender:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hook = {"fp32": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook}[codec]
    tensor = torch.from_numpy(gradients.values.copy())  # reduced in place
    bucket = _Bucket(tensor)

    def call() -> None:
        hook(None, bucket).wait()

    width = 4 if codec == "fp32" else 2
    return Contender("ddp", codec, call, tensor.numpy, encoded=width * tensor.numel())


def powersgd_bytes(shape: tuple[int, ...], codec: str) -> int:
    """Return the bytes PowerSGD makes of a tensor (Vogels et al. 2019): two factors, or all of a vector."""
    rows, columns = (shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else (1, int(np.prod(shape)))
    sent = min(int(codec.removeprefix("powersgd")), rows, columns) * (rows + columns)
    # The hook leaves alone what it would not make half as large.
    return 4 * (sent if 2 * sent < rows * columns else rows * columns)


def shape_of(n: int) -> tuple[int, int]:
    """Return rows and columns of n elements as the matrix that is nearest to a square."""
    rows = next(r for r in range(int(n**0.5), 0, -1) if n % r == 0)
    return rows, n // rows


def _powersgd(gradients: Gradients, codec: str) -> Contender:
    """A backward pass of a module whose one gradient is given: nothing is computed beside the hook."""
    import torch

    rows, columns = shape_of(gradients.values.size)
    given = torch.from_numpy(gradients.values).view(rows, columns)

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any) -> Any:
            return weight.new_zeros(())

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return given.view_as(given)  # a tensor of its own is taken as it is, and copied into the bucket

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(rows, columns))

        def forward(self) -> Any:
            return Given.apply(self.weight)

    module = Module()
    model = wrapped(module, codec)

    def call() -> None:
        module.weight.grad = None
        model().backward()

    def result() -> np.ndarray:
        return module.weight.grad.reshape(-1).numpy()

    for _ in range(first_steps(codec)):
        call()
    return Contender("ddp", codec, call, result, encoded=powersgd_bytes((rows, columns), codec))
