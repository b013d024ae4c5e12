"""The training loop, with one optimizer step after `backward_passes` batches, and the tests after it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from itertools import islice

import torch
from torch.nn.functional import cross_entropy, mse_loss

from .data import Data, batches, shard
from .plan import Progress, schedule, steps_of
from .samples import endless
from .torch_exchange import TorchExchange


def optimizer_for(model: torch.nn.Module, name: str, lr: float, size: int) -> torch.optim.Optimizer:
    """SGD with a rate scaled by the number of ranks (Goyal et al. 2017, section 2.1), or another with `lr`.

    Adagrad takes sparse gradients too, and steps by them as by dense ones.
    """
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    if name == "adagrad":
        return torch.optim.Adagrad(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr * size, momentum=0.9, weight_decay=1e-4)


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, in nats, of all that is to be said: a label an image, or one for each character.

    Of ratings, the mean squared error.
    """
    if y.is_floating_point():
        return mse_loss(model(x), y)
    return cross_entropy(model(x).flatten(0, -2), y.flatten())


def train(model: torch.nn.Module, data: Data, exchange: TorchExchange, options: argparse.Namespace) -> int:
    """Train on this rank's shards; return the number of optimizer steps, the same on all ranks."""
    optimizer = exchange.optimizer(optimizer_for(model, options.optimizer, options.lr, exchange.size), model)
    scaler = torch.amp.GradScaler("cpu") if options.amp else None
    a_pass, total = steps_of(len(data.train_y), exchange.size, options)
    peak = [g["lr"] for g in optimizer.param_groups]
    progress = Progress(exchange.rank == 0, total)
    model.train()
    for done, batches_of_step in enumerate(islice(_groups(data, exchange, options, a_pass), total)):
        for g, lr in zip(optimizer.param_groups, peak, strict=True):
            g["lr"] = lr * schedule(done, total)
        optimizer.zero_grad()
        for x, y in batches_of_step:
            with torch.autocast("cpu", torch.bfloat16) if options.amp else contextlib.nullcontext():
                loss = loss_of(model, x, y) / options.backward_passes
            (scaler.scale(loss) if scaler else loss).backward()
        _step(optimizer, scaler)
        progress.step(done + 1, f"loss {loss.item() * options.backward_passes:.3f}")
    progress.end()
    if options.max_staleness:
        optimizer.drain()
    return total


def _groups(
    data: Data, exchange: TorchExchange, options: argparse.Namespace, a_pass: int
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The batches of each optimizer step, without end; one pass over the data has `a_pass` steps."""
    samples, each = len(data.train_y), options.backward_passes
    found = endless(
        lambda epoch: batches(samples, exchange.rank, exchange.size, options.batch_size, options.seed, epoch),
        a_pass * each,
    )
    while True:
        yield [(data.train_x[i], data.train_y[i]) for i in islice(found, each)]


def _step(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
    if scaler is None:
        optimizer.step()
        return
    # As Horovod documents it: reduce, then look for non-finite gradients in the result, on all ranks alike.
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def trainable_elements(model: torch.nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: Data, exchange: TorchExchange) -> float:
    """Part of all test images that are classified rightly; each rank looks at its share.

    Batch-norm statistics are each rank's own during training; rank 0's are taken, so that there is one model.
    """
    exchange.hvd.broadcast_parameters(dict(model.named_buffers()), root_rank=0)
    model.eval()
    mine = shard(len(data.test_y), exchange.rank, exchange.size)
    right = sum((model(data.test_x[i]).argmax(1) == data.test_y[i]).sum().item() for i in mine.split(500))
    return exchange.mean(float(right), "accuracy.right") * exchange.size / len(data.test_y)


def validation_loss(model: torch.nn.Module, data: Data, exchange: TorchExchange) -> float:
    """Mean cross entropy, in nats a character, of all test pieces; each rank looks at its share."""
    return _test_loss(model, data, exchange, "validation_loss.total")


def validation_rmse(model: torch.nn.Module, data: Data, exchange: TorchExchange) -> float:
    """Root of the mean squared error of all test ratings; each rank looks at its share."""
    return _test_loss(model, data, exchange, "validation_rmse.total") ** 0.5


@torch.no_grad()
def _test_loss(model: torch.nn.Module, data: Data, exchange: TorchExchange, name: str) -> float:
    model.eval()
    mine = shard(len(data.test_y), exchange.rank, exchange.size)
    total = sum(loss_of(model, data.test_x[i], data.test_y[i]).item() * len(i) for i in mine.split(100))
    return exchange.mean(total, name) * exchange.size / len(data.test_y)


MEASURES = {  # by the key of metrics.METRICS
    "accuracy": accuracy,
    "validation_loss": validation_loss,
    "validation_rmse": validation_rmse,
}
