"""Sparse gradients on Horovod's wire: indices by their gaps, values encoded.

Each rank gives one message to an allgather. A message is int32 words: five int64 (bytes of the indices,
bytes of the payload, sparse dimensions, non-zeros, and the limit below which the indices are), the indices,
the payload, zeros up to a whole word. Indices in one dimension that ascend are coded by their gaps
(docs/wire-format.md, "Indices"); others travel as int64, and their limit is 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.codec import get
from hvd_gradflow.device.wire_topk import max_index_bytes
from hvd_gradflow.errors import WireError

_HEAD = 5 * 8


def stochastic(codec: Any) -> Any:
    """Return `codec` set up for values without a residual: unbiased rounding where it has a choice.

    A codec that lives on paying back later what it lost is replaced by int8.
    """
    if getattr(codec, "needs_feedback", False):
        codec = get("int8")
    known = codec.get_config()
    options = {"rounding": "stochastic", "error_feedback": False}
    chosen = {k: v for k, v in options.items() if k in known}
    return codec.replace(**chosen)


def key_of(scope: str, name: str, sequence: int, rank: int) -> int:
    """Return what feeds the dither of one message; differs between ranks, tensors and steps."""
    identity = f"{scope}\0{name}\0{sequence}\0{rank}".encode()
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")


def pack(indices: np.ndarray, values: np.ndarray, codec: Any, key: int) -> np.ndarray:
    """Return the message of one rank.

    Parameters
    ----------
    indices : ndarray of int64, shape (sparse dimensions, non-zeros)
        None twice.
    values : ndarray of float32, shape (non-zeros, ...)
    codec : Codec
        Encodes the values.
    key : int
        See :func:`key_of`.

    Returns
    -------
    ndarray of int32
    """
    payload = (
        np.frombuffer(memoryview(codec.encode(values.reshape(-1), key=key)), np.uint8) if values.size else b""
    )
    code, limit = _encoded(indices.astype(np.int64, copy=False))
    head = np.array([len(code), len(payload), *indices.shape, limit], np.int64)
    body = b"".join((head.tobytes(), code, bytes(payload)))
    message = np.zeros(-(-len(body) // 4), np.int32)
    message.view(np.uint8)[: len(body)] = np.frombuffer(body, np.uint8)
    return message


def unpack(
    messages: np.ndarray, codec: Any, shape: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the indices and the float32 values of each rank that has any, as :func:`pack` took them.

    Parameters
    ----------
    messages : ndarray of int32
        One after another.
    codec : Codec
        As on the sender.
    shape : tuple of int
        Of the whole gradient.

    Raises
    ------
    WireError
        For a message that does not fit itself or the gradient.
    """
    data = messages.view(np.uint8)
    position = 0
    while position < data.size:
        if position + _HEAD > data.size:
            raise WireError(
                f"sparse gradient: {data.size - position} bytes left over, expected a head of {_HEAD}"
            )
        size, payload, dims, nonzeros, limit = (
            int(n) for n in data[position : position + _HEAD].copy().view(np.int64)
        )
        start = position + _HEAD + size
        # Each index takes a bit at least; so no more memory is asked for than follows from what arrived.
        fits = dims == 1 and nonzeros <= 8 * size if limit else size == 8 * dims * nonzeros
        if min(size, payload, nonzeros, limit) < 0 or dims < 1 or not fits or start + payload > data.size:
            raise WireError(
                f"sparse gradient: a message of {size} bytes of indices in {dims} dimensions for {nonzeros}"
                f" non-zeros with a payload of {payload} bytes does not fit {data.size} bytes"
            )
        if nonzeros:
            indices = _decoded(data[position + _HEAD : start].copy(), (dims, nonzeros), limit)
            dense = tuple(shape[dims:])
            values = np.zeros((nonzeros, *dense), np.float32)
            if payload:
                decoded = np.asarray(codec.decode(data[start : start + payload].copy()), np.float32)
                if decoded.size != values.size:
                    raise WireError(f"sparse gradient: {decoded.size} values for {nonzeros} rows of {dense}")
                values = decoded.reshape(values.shape)
            yield indices, values
        position = (start + payload + 3) // 4 * 4


def _encoded(indices: np.ndarray) -> tuple[bytes, int]:
    """Indices as bytes, and the limit that their decoder has to know; 0 if they are not coded."""
    row = indices[0] if indices.shape[0] == 1 else np.zeros(0, np.int64)
    if not row.size or row[0] < 0 or (np.diff(row) <= 0).any():
        return indices.tobytes(), 0
    limit = int(row[-1]) + 1
    out = np.empty(max_index_bytes(limit, row.size), np.uint8)
    return out[: device.backend().encode_indices(np.ascontiguousarray(row), limit, out)].tobytes(), limit


def _decoded(code: np.ndarray, shape: tuple[int, int], limit: int) -> np.ndarray:
    if not limit:
        return code.view(np.int64).reshape(shape)
    indices = np.empty(shape, np.int64)
    device.backend().decode_indices(code, limit, indices[0])
    return indices
