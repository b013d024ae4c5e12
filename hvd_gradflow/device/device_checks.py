"""The arguments of a device's kernels, checked in one place for all devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device import arrays, wire
from hvd_gradflow.device.memory import LOADED_DTYPES, Stream, segment_table
from hvd_gradflow.errors import UnsupportedError

if TYPE_CHECKING:
    from hvd_gradflow.device.device_kernels import DeviceKernels as Device


def count(name: str, value: int) -> None:
    """Refuse a number of elements or bytes below zero."""
    if value < 0:
        raise ValueError(f"{name}={value}: expected at least 0")


def address(device: Device, name: str, value: int, used: int) -> None:
    """Refuse what is no address of the device, or a null one where anything is `used` of it."""
    if not isinstance(value, int):
        raise TypeError(f"{name} is a {type(value).__name__}: expected an address of {device!r}, an int")
    if not value and used:
        raise ValueError(f"{name} is a null address")


def aligned(device: Device, name: str, value: int, used: int, alignment: int = 0) -> None:
    """Refuse such an address, and one that the kernels cannot take; the default is the device's alignment."""
    address(device, name, value, used)
    alignment = alignment or device.capabilities().alignment
    if value % alignment:
        raise ValueError(
            f"{name} is at {value:#x}, expected a multiple of {alignment} bytes on {device!r}:"
            " copy it to memory from allocate()"
        )


def stream(device: Device, value: Stream | None, optional: bool = False) -> None:
    """Refuse what is no stream of this device."""
    if value is None and optional:
        return
    if not isinstance(value, Stream):
        raise TypeError(f"stream is a {type(value).__name__}: expected one of {device!r}.stream()")
    if value.device is not device:
        raise ValueError(f"stream belongs to {value.device!r}, expected one of {device!r}")


def codec(device: Device, spec: dict[str, Any], n: int, on: Stream, scratch: int) -> None:
    """What all kernels of codecs have in common."""
    wire.check_spec(spec)
    lacking = device.lacks(spec)
    if lacking:
        raise UnsupportedError(f"device {device!r}: {lacking}")
    count("n", n)
    stream(device, on)
    aligned(device, "scratch", scratch, device.scratch_bytes(spec, n))


def stepped(
    device: Device, spec: dict[str, Any], ends: Any, steps: Any, n: int, on: Stream, scratch: int
) -> np.ndarray:
    """The same for kernels that are given steps; returns their table."""
    codec(device, spec, n, on, scratch)
    if spec["id"] != wire.DEADZONE:
        raise ValueError(f"codec {wire.CODECS[spec['id']][0]} has no steps")
    return segment_table(ends, steps, n)


def first(spec: dict[str, Any], value: int) -> None:
    """Refuse an index that is not at the beginning of a block."""
    if value < 0 or value % spec["block"]:
        raise ValueError(f"first={value} is not a multiple of the block ({spec['block']})")


def header_dtype(dtype: int) -> None:
    """Refuse what is no gf_dtype."""
    if dtype not in arrays.DTYPE_NAMES:
        raise TypeError(f"dtype {dtype}: expected one of {arrays.DTYPE_NAMES}")


def encoding(device: Device, x: int, residual: int, n: int, dtype: int, out: int, size: int) -> None:
    """Where an encoder reads and writes."""
    if dtype not in LOADED_DTYPES:
        seen = arrays.DTYPE_NAMES.get(dtype, str(dtype))
        expected = " or ".join(arrays.DTYPE_NAMES[d] for d in LOADED_DTYPES)
        raise TypeError(f"elements of dtype {seen}: expected {expected}; convert them first")
    aligned(device, "x", x, n)
    aligned(device, "residual", residual, 0)
    aligned(device, "out", out, 1)
    aligned(device, "size", size, 1, 8)


def decoding(device: Device, payload: int, nbytes: int, out: int, n: int, status: int) -> None:
    """Where a decoder reads and writes."""
    count("nbytes", nbytes)
    aligned(device, "payload", payload, nbytes)
    aligned(device, "out", out, n)
    aligned(device, "status", status, 1, 4)


def pieces(device: Device, table: int, number: int, name: str, bucket: int, n: int, on: Stream) -> None:
    """A table of tensors and the bucket they belong to."""
    stream(device, on)
    count("count", number)
    count("n", n)
    aligned(device, "pieces", table, number, 8)
    aligned(device, name, bucket, n)


def view(device: Device, array: Any, seen: arrays.ArrayView, writable: bool) -> None:
    """Refuse an array whose address is no good for kernels."""
    what = f"{arrays.kind(array)} of shape {seen.shape} on {device!r}"
    if not seen.contiguous:
        raise ValueError(f"{what} is not contiguous (strides {seen.strides} bytes): pass its contiguous copy")
    if seen.size and seen.address % seen.itemsize:
        raise ValueError(f"{what} is at {seen.address:#x}, expected a multiple of {seen.itemsize} bytes")
    if writable and seen.readonly:
        raise ValueError(f"{what} is read-only, and would be written: pass a copy")
