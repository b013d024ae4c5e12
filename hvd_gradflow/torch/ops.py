"""``allreduce`` and its relatives: Horovod's own, or our reducer where a compression of ours is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horovod.torch import mpi_ops
from horovod.torch.mpi_ops import Average, ProcessSet, Sum, global_process_set

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.torch import session
from hvd_gradflow.torch.choice import Choice, Compression, as_choice
from hvd_gradflow.torch.pending import Allreduce, Pending, submit
from hvd_gradflow.torch.tensors import DTYPES


def synchronize(handle: Any) -> Any:
    """Wait for an asynchronous operation, Horovod's or ours, and return its result."""
    return handle.wait() if isinstance(handle, Pending) else mpi_ops.synchronize(handle)


def poll(handle: Any) -> bool:
    """Return whether ``synchronize(handle)`` would return without blocking."""
    return handle.done() if isinstance(handle, Pending) else mpi_ops.poll(handle)


def _carrier(compression: Any, op: int, tensors: Sequence[torch.Tensor]) -> tuple[Choice | None, Any]:
    """Return our choice and None, or None and the compressor for Horovod's own operation."""
    choice = None if compression is None else as_choice(compression)
    if choice is None:
        return None, mpi_ops.Compression.none if compression is None else compression
    if choice.lossless or not all(t.dtype.is_floating_point for t in tensors):
        return None, mpi_ops.Compression.none  # as Horovod's fp16, which leaves integers as they are
    why = session.obstacle()
    if why is None and op not in (Average, Sum):
        why = f"op={op} works on uncompressed tensors: use op=hvd.Average or hvd.Sum"
    if why is not None:
        if choice.of_horovod() is None:
            raise UnsupportedError(f"{choice!r}: {why}")
        return None, choice.of_horovod()
    for t in tensors:
        if t.layout != torch.strided or t.dtype not in DTYPES:
            raise UnsupportedError(
                f"{choice!r}: a tensor of layout {t.layout} and dtype {t.dtype}, expected a dense tensor of"
                f" {', '.join(DTYPES.values())}"
            )
    return choice, None


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = None,
) -> Any:
    """Start an allreduce; as Horovod's, with `compression` in addition. The handle is for ``synchronize``."""
    op = mpi_ops.handle_average_backwards_compatibility(op, average)
    choice = _only_ours(compression, op, [tensor])
    if choice is None:
        return mpi_ops.allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    output = torch.empty_like(tensor, requires_grad=False)
    return submit(choice, [tensor], [output], name, op, prescale_factor, postscale_factor, process_set, False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = None,
) -> Any:
    """As :func:`allreduce_async`, in place."""
    op = mpi_ops.handle_average_backwards_compatibility(op, average)
    choice = _only_ours(compression, op, [tensor])
    if choice is None:
        return mpi_ops.allreduce_async_(
            tensor, None, name, op, prescale_factor, postscale_factor, process_set
        )
    return submit(choice, [tensor], [tensor], name, op, prescale_factor, postscale_factor, process_set, False)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = None,
) -> torch.Tensor:
    """Allreduce in place; as Horovod's, with `compression` in addition."""
    return synchronize(
        allreduce_async_(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set, compression
        )
    )


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Allreduce; as Horovod's, and differentiable as there.

    Parameters
    ----------
    tensor, average, name, op, prescale_factor, postscale_factor, process_set
        As in Horovod.
    compression : Choice, or one of Horovod's own compressors
        Of ours: the tensor travels compressed. With a `name`, what compression lost is kept and added to the
        next tensor of that name (error feedback).
    """
    op = mpi_ops.handle_average_backwards_compatibility(op, average)
    choice, theirs = _carrier(compression, op, [tensor])
    if choice is None:
        return mpi_ops.allreduce(
            tensor, None, name, theirs, op, prescale_factor, postscale_factor, process_set
        )
    return Allreduce.apply(choice, name, op, prescale_factor, postscale_factor, process_set, False, tensor)[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = None,
) -> Any:
    """Start an allreduce of several tensors; as Horovod's, with `compression` in addition."""
    op = mpi_ops.handle_average_backwards_compatibility(op, average)
    choice = _only_ours(compression, op, tensors)
    if choice is None:
        return mpi_ops.grouped_allreduce_async(
            tensors, None, name, op, prescale_factor, postscale_factor, process_set
        )
    outputs = [torch.empty_like(t, requires_grad=False) for t in tensors]
    return submit(choice, tensors, outputs, name, op, prescale_factor, postscale_factor, process_set, True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = None,
) -> Any:
    """As :func:`grouped_allreduce_async`, in place."""
    op = mpi_ops.handle_average_backwards_compatibility(op, average)
    choice = _only_ours(compression, op, tensors)
    if choice is None:
        return mpi_ops.grouped_allreduce_async_(
            tensors, None, name, op, prescale_factor, postscale_factor, process_set
        )
    return submit(choice, tensors, tensors, name, op, prescale_factor, postscale_factor, process_set, True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = None,
) -> Any:
    """Allreduce several tensors in place; as Horovod's, with `compression` in addition."""
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set, compression
        )
    )


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Allreduce several tensors; as Horovod's, with the compressions of :func:`allreduce`."""
    op = mpi_ops.handle_average_backwards_compatibility(op, average)
    choice, theirs = _carrier(compression, op, tensors)
    if choice is None:
        return mpi_ops.grouped_allreduce(
            tensors, None, name, theirs, op, prescale_factor, postscale_factor, process_set
        )
    return list(
        Allreduce.apply(choice, name, op, prescale_factor, postscale_factor, process_set, True, *tensors)
    )


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Horovod's reducescatter; of our compressions it takes ``none`` and ``fp16``, which Horovod has too."""
    theirs = _horovods(compression)
    return mpi_ops.reducescatter(tensor, name, theirs, op, process_set, prescale_factor, postscale_factor)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Horovod's grouped reducescatter, as :func:`reducescatter`."""
    theirs = _horovods(compression)
    return mpi_ops.grouped_reducescatter(
        tensors, name, theirs, op, process_set, prescale_factor, postscale_factor
    )


def _horovods(compression: Any) -> Any:
    choice = as_choice(compression)
    theirs = compression if choice is None else choice.of_horovod()
    if theirs is None:
        raise UnsupportedError(
            f"reducescatter with {choice!r}: only allreduce is compressed; use .none or .fp16"
        )
    return theirs


def _only_ours(compression: Any, op: int, tensors: Sequence[torch.Tensor]) -> Choice | None:
    """Return our choice, or None for Horovod's operation; its asynchronous ones are never compressed."""
    choice, theirs = _carrier(compression, op, tensors)
    if choice is None and theirs is not mpi_ops.Compression.none:
        raise UnsupportedError(
            f"compression={compression!r} in an asynchronous allreduce: a compressor of Horovod's works in"
            " hvd.allreduce() only"
        )
    return choice
