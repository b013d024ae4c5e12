"""Keras on torch; see :mod:`hvd_gradflow.keras.bridge`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend import carrier as common
from hvd_gradflow.frontend.exchange import Terms
from hvd_gradflow.frontend.streams import Streams
from hvd_gradflow.reduce import TensorSpec
from hvd_gradflow.reduce.layout import kind_of
from hvd_gradflow.reduce.route import Route
from hvd_gradflow.torch import ops
from hvd_gradflow.torch.choice import Choice, as_choice
from hvd_gradflow.torch.session import session
from hvd_gradflow.torch.tensors import DTYPES, as_submitted, current, on_host

__all__ = [
    "all_finite",
    "all_finite_by_horovod",
    "broadcast",
    "carrier",
    "hvd",
    "make_exchange",
    "maximum",
    "mean",
    "ops",
    "plain",
    "scaled",
    "session",
    "stock_reduce",
    "tensor",
    "tracing",
]


def carrier(compression: Any, op: int) -> tuple[Choice | None, Any]:
    """Return a choice of ours, or None and the compressor with which Horovod carries gradients."""
    choice = as_choice(compression)
    if choice is None:
        return None, compression
    return common.carrier(session, choice, op)


class TensorExchange(Streams):
    """How the gradients of one optimizer are reduced; see :class:`Streams`."""

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        moments: Callable[[Any], Any],
    ) -> list[Any]:
        """Return the reduced gradients; None stays None."""
        session.require(repr(self.choice))
        if self.alone:
            return list(gradients)
        present = [i for i, g in enumerate(gradients) if g is not None]
        specs = [_spec(variables[i].path, gradients[i]) for i in present]
        inner = [plain(variables[i]) for i in present]
        at = inner[0] if len({p.device for p in inner}) == 1 else None
        places = self.places(inner, [s.name for s in specs], specs, at)
        for index, (host, name) in reversed(list(zip(present, places, strict=True))):
            moment = moments(variables[index]) if self.may_normalize else None
            second = None if moment is None else on_host(moment.value, torch.float32)
            gradient = gradients[index]
            if host.place is None:
                given = on_host(gradient)
            else:  # it may be on another device than the variables
                given = as_submitted(gradient.to(host.at.device), gradient.dtype, host.place)
            with current(given):
                host.submit(name, given, second)
        for host in dict.fromkeys(host for host, _ in places):
            host.end_step()
        results = list(gradients)
        for index, (host, name) in zip(present, places, strict=True):
            gradient = gradients[index]
            where = "cpu" if host.place is None else host.at.device
            result = torch.empty(gradient.shape, dtype=gradient.dtype, device=where)
            with current(result):
                host.wait(name, result)
            results[index] = result.to(gradient.device)
        return results


def _spec(name: str, gradient: torch.Tensor) -> TensorSpec:
    if gradient.layout != torch.strided:
        raise UnsupportedError(
            f"the gradient of {name!r} has layout {gradient.layout}: only dense ones are carried"
        )
    if gradient.dtype not in DTYPES:
        raise UnsupportedError(
            f"the gradient of {name!r} has dtype {gradient.dtype}, but gradients of"
            f" {', '.join(DTYPES.values())} are carried"
        )
    return TensorSpec(name, tuple(gradient.shape), DTYPES[gradient.dtype], kind_of(gradient.shape))


def make_exchange(
    choice: Any,
    process_set: Any,
    average: bool,
    predivide: float,
    sparse_as_dense: bool,
    importance: str,
    max_staleness: int,
    alike: Mapping[str, object],
) -> TensorExchange:
    """Return the exchange of one optimizer; Keras' gradients on torch are dense by themselves."""
    terms = Terms(
        session, choice, process_set, average, predivide, importance, "optimizer", max_staleness, alike
    )
    return TensorExchange(terms)


def stock_reduce(
    compression: Any, op: int, predivide: float, sparse_as_dense: bool, process_set: Any, name: str
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """Return a function that reduces gradients by Horovod's own operations."""
    prescale, postscale = (1.0 / predivide, predivide) if op == hvd.Average else (1.0, 1.0)

    def reduce(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if not process_set.included() or process_set.size() == 1:
            return list(gradients)
        return [
            None
            if g is None
            else hvd.allreduce(
                g, name=f"{name}.gradient.{i}", compression=compression, op=op, prescale_factor=prescale,
                postscale_factor=postscale, process_set=process_set,
            )
            for i, g in enumerate(gradients)
        ]  # fmt: skip

    return reduce


def maximum(tensor: torch.Tensor, process_set: Any, name: str) -> torch.Tensor:
    """Return the largest value over the ranks, element by element."""
    if not process_set.included() or process_set.size() == 1:
        return tensor
    return hvd.allreduce(tensor.float(), op=hvd.Max, name=name, process_set=process_set).to(tensor.dtype)


def all_finite(flag: Any, process_set: Any, route: Route, names: list[str]) -> Any:
    """Return whether `flag`, a boolean scalar, is true on every rank."""
    if not process_set.included() or process_set.size() == 1:
        return flag
    if not names:
        names.append(session.reducer_and_scope(process_set, route, "finite")[1])
    reducer = session.reducer_of(process_set, route)
    bad = np.array([not bool(flag)], np.float32)
    return torch.tensor(bool(reducer.allreduce(bad, names[0], op="sum", codec="none")[0] == 0))


def all_finite_by_horovod(flag: Any, process_set: Any, name: str) -> Any:
    """As :func:`all_finite`, where our reducer cannot run."""
    if not process_set.included() or process_set.size() == 1:
        return flag
    bad = torch.tensor(0.0 if bool(flag) else 1.0)
    return hvd.allreduce(bad, op=hvd.Sum, name=name, process_set=process_set) == 0.0


def tracing() -> bool:
    """Return whether a graph is being traced: never."""
    return False


def scaled(gradient: torch.Tensor | None, process_set: Any) -> torch.Tensor | None:
    """Return the gradient of a local variable, divided by the number of ranks."""
    return None if gradient is None else gradient / process_set.size()


def broadcast(variables: Sequence[Any], root_rank: int) -> None:
    """Broadcast Keras variables from one rank to all."""
    with torch.no_grad():
        values = [(str(i), plain(v)) for i, v in enumerate(variables)]
        hvd.broadcast_parameters(values, root_rank)


def mean(values: Sequence[float]) -> list[float]:
    """Return the averages over the ranks."""
    if not values:
        return []
    return hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Average).tolist()


def tensor(value: Any) -> torch.Tensor:
    """Return a value as a tensor."""
    return torch.as_tensor(plain(value))


def plain(variable: Any) -> Any:
    """Return what torch knows of a variable: its parameter."""
    return getattr(variable, "value", variable)
