"""torch's sparse gradients as messages of :mod:`hvd_gradflow.frontend.sparse`, and the sum of all ranks'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hvd_gradflow.frontend import sparse
from hvd_gradflow.frontend.sparse import stochastic as stochastic


def pack(gradient: torch.Tensor, codec: Any, key: int) -> torch.Tensor:
    """Return the message of one rank: int32.

    Parameters
    ----------
    gradient : Tensor
        Sparse (COO), any number of sparse and dense dimensions.
    codec : Codec
        Encodes the values.
    key : int
        Feeds the codec's dither.
    """
    gradient = gradient.detach().coalesce()
    indices = gradient.indices().cpu().contiguous().numpy().astype(np.int64, copy=False)
    values = gradient.values().to(device="cpu", dtype=torch.float32).contiguous().numpy()
    return torch.from_numpy(sparse.pack(indices, values, codec, key))


def unpack(
    messages: torch.Tensor, codec: Any, shape: torch.Size
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the indices and the float32 values of each rank that has any."""
    for indices, values in sparse.unpack(messages.numpy(), codec, tuple(shape)):
        yield torch.from_numpy(indices), torch.from_numpy(np.array(values))


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
