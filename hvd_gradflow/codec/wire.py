"""The header of a payload, to read and to write (docs/wire-format.md); for tools and for codecs in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.device.wire import (
    FLAG_NONFINITE,
    FLAG_STOCHASTIC,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Header,
)
from hvd_gradflow.errors import WireError

__all__ = ["FLAG_NONFINITE", "FLAG_STOCHASTIC", "HEADER_BYTES", "Header", "open_payload", "seal"]


def seal(
    codec: int,
    body: Any,
    *,
    count: int,
    dtype: int = 1,
    flags: int = 0,
    block_log2: int = 0,
    bits: int = 0,
) -> np.ndarray:
    """Return a payload: header, checksum, body.

    Parameters
    ----------
    codec : int
        Wire id, 1 to 255.
    body : bytes-like
    count : int
        Elements in the body.
    dtype, flags, block_log2, bits : int
        The header's other fields.

    Returns
    -------
    ndarray of uint8
    """
    body = np.frombuffer(body, np.uint8)
    fields = (MAGIC, VERSION, codec, dtype, flags, block_log2, bits, count, body.size, 0)
    payload = np.concatenate([np.frombuffer(Header(*fields, 0).pack(), np.uint8), body])
    crc = device.backend().crc32c(payload, 0)
    payload[:HEADER_BYTES] = np.frombuffer(Header(*fields, crc).pack(), np.uint8)
    return payload


def open_payload(payload: Any, codec: int | None = None) -> tuple[Header, np.ndarray]:
    """Check a payload's frame and return its header and body (uint8, the same memory).

    Raises
    ------
    WireError
        If it is truncated or longer than announced, of another version or codec, or its checksum differs.
    """
    data = np.frombuffer(payload, np.uint8)
    header = Header.unpack(data)
    if codec is not None and header.codec != codec:
        raise WireError(f"payload of codec id {header.codec}, expected {codec}")
    if data.size != HEADER_BYTES + header.length:
        raise WireError(
            f"payload of {data.size} bytes, expected {HEADER_BYTES + header.length} as its header announces"
        )
    start = data[:HEADER_BYTES].copy()
    start[28:] = 0
    kernels = device.backend()
    crc = kernels.crc32c(data[HEADER_BYTES:], kernels.crc32c(start, 0))
    if crc != header.crc:
        raise WireError(f"payload with checksum {header.crc:#010x}, expected {crc:#010x}: damaged on its way")
    return header, data[HEADER_BYTES:]
