"""Training steps of one network by different systems, each with weights and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_gradflow.bench import ddp_hooks
from hvd_gradflow.bench.data import relative_error
from hvd_gradflow.bench.models import Model
from hvd_gradflow.bench.turns import Contender
from hvd_gradflow.bench.world import World
from hvd_gradflow.codec.registry import parsed

COMPUTE = "compute"  # the system that exchanges nothing
_RATE = 1e-5  # weights hardly move, so that the last step is like the first


@dataclass(frozen=True)
class Step:
    """One system's step: forward, backward with whatever it exchanges, and the update.

    Attributes
    ----------
    contender : Contender
    module : torch.nn.Module
        The network itself, in whatever wraps it.
    model : Model
    ranks : int
    """

    contender: Contender
    module: Any
    model: Model
    ranks: int

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return sum(4 * p.numel() for p in self.module.parameters())

    def error_of_the_next(self, checks: bool) -> float | None:
        """Take a step and return its gradient's relative error, where `checks`; collective.

        The exact average is that of all ranks' gradients at the weights before the step.
        """
        exact = self._exact() if checks else None
        self.contender.call()
        if exact is None:
            return None
        return relative_error(_flat([p.grad for p in self.module.parameters()]), exact)

    def _exact(self) -> np.ndarray:
        import torch

        parameters = list(self.module.parameters())
        total = np.zeros(self.nbytes // 4)
        for rank in range(self.ranks):
            inputs, targets = self.model.batch(rank)
            loss = self.model.loss(self.module(inputs), targets)
            # Not backward(), which would start an exchange.
            total += _flat(list(torch.autograd.grad(loss, parameters)))
        total /= self.ranks
        return total


def _flat(tensors: list[Any]) -> np.ndarray:
    return np.concatenate([tensor.reshape(-1).numpy() for tensor in tensors])


def steps(ranks: World, model: Model, wanted: dict[str, list[str]]) -> Iterator[Step]:
    """Yield the steps of all systems, and one without an exchange first; collective."""
    makers = {"horovod": _horovod, "ddp": _ddp, "gradflow": _gradflow}
    yield _step(ranks, model, COMPUTE, "", _alone)
    for system, codecs in wanted.items():
        for codec in codecs:
            yield _step(ranks, model, system, codec, makers[system])


# What is called instead of the module, the optimizer, and what counts bytes given to MPI.
_Made = tuple[Any, Any, "Callable[[], int] | None"]


def _step(ranks: World, model: Model, system: str, codec: str, make: Callable[[Any, str], _Made]) -> Step:

    module = model.make()
    forward, optimizer, handed = make(module, codec)
    inputs, targets = model.batch(ranks.comm.rank)

    def call() -> None:
        optimizer.zero_grad()
        model.loss(forward(inputs), targets).backward()
        optimizer.step()

    shapes = [tuple(p.shape) for p in module.parameters()]
    contender = Contender(system, codec, call, handed=handed, encoded=_encoded(system, codec, shapes))
    for _ in range(ddp_hooks.first_steps(codec) if system == "ddp" else 0):
        call()
    return Step(contender, module, model, ranks.comm.size)


def _encoded(system: str, codec: str, shapes: list[tuple[int, ...]]) -> int | None:
    elements = sum(int(np.prod(shape)) for shape in shapes)
    if system not in ("horovod", "ddp"):
        return None
    if codec.startswith("powersgd"):
        return sum(ddp_hooks.powersgd_bytes(shape, codec) for shape in shapes)
    return elements * (4 if codec == "fp32" else 2)


def _sgd(module: Any) -> Any:
    import torch

    return torch.optim.SGD(module.parameters(), lr=_RATE)


def _named(module: Any, label: str) -> list[tuple[str, Any]]:
    """Parameters under names of this contender's own: Horovod caches what it knows of a name."""
    return [(f"{label}.{name}", p) for name, p in module.named_parameters()]


def _alone(module: Any, codec: str) -> _Made:
    return module, _sgd(module), None


def _horovod(module: Any, codec: str) -> _Made:
    import horovod.torch as hvd

    compression = {"fp32": hvd.Compression.none, "fp16": hvd.Compression.fp16}[codec]
    named = _named(module, f"horovod.{codec}")
    return module, hvd.DistributedOptimizer(_sgd(module), named, compression), None


def _ddp(module: Any, codec: str) -> _Made:
    return ddp_hooks.wrapped(module, codec), _sgd(module), None


def _gradflow(module: Any, codec: str) -> _Made:
    import hvd_gradflow.torch as ours

    name, options = parsed(codec)
    compression = getattr(ours.Compression, name)
    if options:
        compression = compression(**options)
    named = _named(module, f"gradflow.{codec}")
    optimizer = ours.DistributedOptimizer(_sgd(module), named, compression)
    return module, optimizer, lambda: ours.wire_counters()["wire_bytes"]
