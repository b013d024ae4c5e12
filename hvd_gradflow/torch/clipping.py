"""Clipping by global norm between reduction and step: what :mod:`.distributed` puts on Horovod's class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hvd_gradflow.control import clipping
from hvd_gradflow.torch.tensors import on_host


def clip(optimizer: Any, limit: float) -> None:
    """Scale the gradients of an optimizer, which are reduced, so that their norm is at most `limit`.

    The norm before that becomes ``optimizer.grad_norm``. As ``torch.nn.utils.clip_grad_norm_``, but a norm
    that is not finite leaves all gradients as they are.
    """
    found = [_values(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if all(values.is_cpu for values in found):
        norm = clipping.norm(clipping.energy(array) for values in found for array in _arrays(values))
        optimizer.grad_norm = torch.tensor(norm, dtype=_precision(found))
        factor = clipping.factor(norm, limit)
        if factor < 1.0:
            for values in found:
                values.mul_(factor)
        return
    # On a GPU, in double, and nothing waits for it.
    device = next(values.device for values in found if not values.is_cpu)
    norms = [torch.linalg.vector_norm(v, dtype=torch.float64).to(device, non_blocking=True) for v in found]
    total = torch.linalg.vector_norm(torch.stack(norms))
    optimizer.grad_norm = total.to(_precision(found))
    small = torch.clamp(limit / (total + clipping.EPSILON), max=1.0)
    multiplier = torch.where(torch.isfinite(total), small, torch.ones_like(small))
    for values in found:
        values.mul_(multiplier.to(values.device))


def _values(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient's values, to be changed in place: those of a sparse one, each index once."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout == torch.strided:
        return gradient.detach()
    if not gradient.is_coalesced():
        gradient = parameter.grad = gradient.coalesce()
    return gradient._values().detach()


def _precision(found: list[torch.Tensor]) -> torch.dtype:
    wide = any(values.dtype == torch.float64 for values in found)
    return torch.float64 if wide else torch.float32


def _arrays(values: torch.Tensor) -> Iterator[Any]:
    """NumPy's view of values on the host, as float32 or float64."""
    if values.numel():
        dtype = values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
        yield on_host(values, dtype).numpy()


def clipping_step(inner: Callable[..., Any], limit: float | None) -> Callable[..., Any]:
    """Return a method ``step`` that takes reduced gradients and clips them, then calls `inner`."""
    if limit is None:
        return inner

    def step(self: Any, closure: Any = None) -> Any:
        if closure is None:
            clip(self, limit)
            return inner(self)

        def clipped_closure() -> Any:
            loss = closure()
            clip(self, limit)
            return loss

        return inner(self, clipped_closure)

    return step
