"""Sparse gradients on Horovod's wire: indices as they are, values encoded.

Each rank gives one message to an allgather. A message is int32 words: four int64 (numbers of indices, of
payload bytes, of sparse dimensions, of non-zeros), the indices as int64, the payload, zeros up to a whole
word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

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
    head = np.array([indices.size, len(payload), *indices.shape], np.int64)
    body = b"".join((head.tobytes(), indices.astype(np.int64).tobytes(), bytes(payload)))
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
            values = np.zeros((nonzeros, *dense), np.float32)
            if payload:
                decoded = np.asarray(codec.decode(data[start : start + payload].copy()), np.float32)
                if decoded.size != values.size:
                    raise WireError(f"sparse gradient: {decoded.size} values for {nonzeros} rows of {dense}")
                values = decoded.reshape(values.shape)
            yield indices, values
        position = (start + payload + 3) // 4 * 4
