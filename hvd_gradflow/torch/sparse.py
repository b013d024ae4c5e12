"""Sparse gradients: values encoded, indices as they are, moved by Horovod's allgather, duplicates summed.

Each rank sends one message, so that one allgather does: a head of four int64 (elements of `indices`, bytes of
the payload, sparse dimensions, non-zeros), the indices, the payload. It is padded to whole int32, in which
it travels, since MPI counts elements in a C int.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hvd_gradflow.codec import get
from hvd_gradflow.errors import WireError

_HEAD = 4 * 8


def stochastic(codec: Any) -> Any:
    """Return `codec` set up for values without a residual: unbiased rounding where it has a choice.

    A codec with steps rounds what is small to zero, and lives on paying it back later: int8 instead.
    """
    if getattr(codec, "stepped", False):
        codec = get("int8")
    known = codec.get_config()
    options = {"rounding": "stochastic", "error_feedback": False}
    chosen = {k: v for k, v in options.items() if k in known}
    return codec.replace(**chosen)


def pack(gradient: torch.Tensor, codec: Any, key: int) -> torch.Tensor:
    """Return the message of one rank.

    Parameters
    ----------
    gradient : Tensor
        Sparse (COO), any number of sparse and dense dimensions.
    codec : Codec
        Encodes the values.
    key : int
        Feeds the codec's dither; differs between ranks, tensors and steps.

    Returns
    -------
    Tensor of int32
    """
    gradient = gradient.detach().coalesce()
    indices = gradient.indices().cpu().contiguous().numpy().astype(np.int64, copy=False)
    values = gradient.values().to(device="cpu", dtype=torch.float32).contiguous().numpy()
    payload = (
        np.frombuffer(memoryview(codec.encode(values.reshape(-1), key=key)), np.uint8) if values.size else b""
    )
    head = np.array([indices.size, len(payload), gradient.sparse_dim(), gradient._nnz()], np.int64)
    body = b"".join((head.tobytes(), indices.tobytes(), bytes(payload)))
    message = np.zeros(-(-len(body) // 4), np.int32)
    message.view(np.uint8)[: len(body)] = np.frombuffer(body, np.uint8)
    return torch.from_numpy(message)


def unpack(
    messages: torch.Tensor, codec: Any, shape: torch.Size
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the indices and the float32 values of each rank that has any."""
    data = messages.numpy().view(np.uint8)
    position = 0
    while position < data.size:
        if position + _HEAD > data.size:
            raise WireError(
                f"sparse gradient: {data.size - position} bytes left over, expected a head of {_HEAD}"
            )
        count, payload, dims, nonzeros = (
            int(n) for n in data[position : position + _HEAD].copy().view(np.int64)
        )
        start = position + _HEAD + count * 8
        if (
            min(count, payload, nonzeros) < 0
            or dims < 1
            or count != dims * nonzeros
            or start + payload > data.size
        ):
            raise WireError(
                f"sparse gradient: a message of {count} indices in {dims} dimensions for {nonzeros} non-zeros"
                f" with a payload of {payload} bytes does not fit {data.size} bytes"
            )
        if nonzeros:
            indices = data[position + _HEAD : start].copy().view(np.int64).reshape(dims, nonzeros)
            dense = tuple(shape[dims:])
            values = torch.zeros((nonzeros, *dense))
            if payload:
                decoded = codec.decode(data[start : start + payload].copy())
                values = torch.from_numpy(np.array(decoded, np.float32).reshape(nonzeros, *dense))
            yield torch.from_numpy(indices), values
        position = (start + payload + 3) // 4 * 4


def combine(
    parts: Iterator[tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the sum of all ranks' parts times `scale`, coalesced, with dtype and device of `like`.

    The ranks are added in their order, in float32.
    """
    found = list(parts)
    if not found:
        return torch.zeros_like(like).coalesce()
    indices = torch.cat([i for i, _ in found], dim=1)
    values = torch.cat([v for _, v in found])
    # What came over the wire is checked: an index out of range would be written out of bounds.
    total = torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=True).coalesce()
    return (total * scale).to(dtype=like.dtype, device=like.device).coalesce()
