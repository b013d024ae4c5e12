"""Reductions of single tensors through our reducer, outside of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from horovod.torch import mpi_ops
from horovod.torch.mpi_ops import Average, ProcessSet

from hvd_gradflow.frontend.single import unnamed, without_feedback
from hvd_gradflow.torch import session
from hvd_gradflow.torch.choice import Choice
from hvd_gradflow.torch.tensors import as_submitted, current, on_host, spec_of


@dataclass(frozen=True)
class _Part:
    handle: Any
    given: torch.Tensor  # what the reducer reads, until it is done
    result: torch.Tensor  # where it writes
    output: torch.Tensor  # where the caller wants it; often the same


class Pending:
    """What ``synchronize`` waits for: reductions under way, and where their results go."""

    def __init__(self, parts: list[_Part], grouped: bool) -> None:
        self._parts = parts
        self._grouped = grouped

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once."""
        return all(part.handle.done() for part in self._parts)

    def wait(self) -> Any:
        """Return the result, or for a grouped operation the tuple of results."""
        for part in self._parts:
            with current(part.given):
                part.handle.wait()
            if part.result is not part.output:
                part.output.detach().copy_(part.result)
        results = tuple(part.output for part in self._parts)
        return results if self._grouped else results[0]


def submit(
    choice: Choice,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
) -> Pending:
    """Start the reduction of `tensors`; the results go to `outputs`, which may be the same tensors."""
    reducer = session.reducer_of(process_set, choice.route)
    named = name is not None
    if name is None:
        name = unnamed(reducer)
    parts = []
    for i, (tensor, output) in enumerate(zip(tensors, outputs, strict=True)):
        full = f"{name}_{i + 1}of{len(tensors)}" if grouped else name
        codec = choice.codec_for(spec_of(full, tensor), reducer.config.min_elements)
        if not named:
            codec = without_feedback(codec)
        place = reducer.place_of(tensor)
        given = on_host(tensor) if place is None else as_submitted(tensor, tensor.dtype, place)
        plain = output.device == given.device and output.is_contiguous()
        result = output if plain else torch.empty(tensor.shape, dtype=tensor.dtype, device=given.device)
        with current(given):
            handle = reducer.allreduce_async(
                given,
                full,
                op="average" if op == Average else "sum",
                codec=codec,
                prescale=prescale,
                postscale=postscale,
                out=result.detach(),
            )
        parts.append(_Part(handle, given, result, output))
    return Pending(parts, grouped)


class Allreduce(torch.autograd.Function):
    """Compressed allreduce; its gradient is the plain allreduce of the gradient, as the sum is linear."""

    @staticmethod
    def forward(ctx, choice, name, op, prescale, postscale, process_set, grouped, *tensors):
        ctx.rest = (op, prescale, postscale, process_set)
        outputs = [torch.empty_like(t, requires_grad=False) for t in tensors]
        pending = submit(choice, tensors, outputs, name, op, prescale, postscale, process_set, grouped)
        result = pending.wait()
        return result if grouped else (result,)

    @staticmethod
    def backward(ctx, *gradients):
        op, prescale, postscale, process_set = ctx.rest
        reduced = mpi_ops.grouped_allreduce(
            [(g.float() if g.dtype == torch.bfloat16 else g).contiguous() for g in gradients],
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return (None,) * 7 + tuple(r.to(g.dtype) for r, g in zip(reduced, gradients, strict=True))
