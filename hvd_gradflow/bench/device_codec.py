"""Speed of the codecs' kernels on a device: ``gradflow bench codec --device NAME``.

Every operation is timed in turn with a copy of the same floats within the device's memory. What counts is how
many bytes it reads and writes in a second, over what that copy does: kernels that pass over memory once and
are limited by it reach one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_gradflow.bench.codec import alternate, chosen, gradient_like
from hvd_gradflow.bench.tables import print_rows, write_json
from hvd_gradflow.codec import Codec
from hvd_gradflow.codec.deadzone import Deadzone
from hvd_gradflow.codec.registry import label
from hvd_gradflow.device import Device, Memory, arrays, devices, wire
from hvd_gradflow.device.memory import TO_DEVICE, TO_HOST, WITHIN
from hvd_gradflow.errors import DeviceError, UnsupportedError

TARGET = 0.8  # of the copy's bytes a second (docs/benchmarks.md)
_COLUMNS = (  # name, alignment, width, format
    ("codec", "<", 8, ""),
    ("op", "<", 17, ""),
    ("device", "<", 10, ""),
    ("gbps", ">", 8, ".2f"),
    ("moved_gbps", ">", 10, ".2f"),
    ("copy_ratio", ">", 10, ".2f"),
    ("target", ">", 6, ".2f"),
    ("bits_per_element", ">", 16, ".2f"),
)


def run_device_bench(
    name: str,
    json_path: str | None = None,
    megabytes: float = 64,
    codecs: list[str] | None = None,
    repeats: int = 15,
) -> list[dict[str, Any]]:
    """Time a device's kernels, print a table and return its rows.

    Parameters
    ----------
    name : str
        Of the device, as :func:`hvd_gradflow.device.devices.device` takes it.
    json_path, megabytes, codecs, repeats
        As of :func:`hvd_gradflow.bench.codec.run_codec_bench`; by default the codecs that the device has.

    Returns
    -------
    list of dict
        ``codec``; ``op``: encode, encode_ef (with error feedback), encode_stochastic, decode or decode_add;
        ``device``; ``gbps``: 10**9 bytes of float32 in a second; ``moved_gbps``: the same of what is read and
        written; ``copy_ratio``: that over the copy's; ``target``: the least such ratio that is aimed at;
        ``bits_per_element``: of the payload.

    Raises
    ------
    ConfigError
        For an unknown device or codec.
    UnsupportedError
        If the device cannot be used here, or has no kernels for a codec that was asked for.
    DeviceError
        If its payloads are not those of the CPU.
    """
    device = devices.available(name)
    used = [codec for codec in chosen(codecs) if codecs or _lacking(device, codec) is None]
    for codec in used:
        lacking = _lacking(device, codec)
        if lacking:
            raise UnsupportedError(f"device {name!r}: {lacking}")
    x = gradient_like(max(1, round(megabytes * 2**20 / 4)))
    print(f"{name}: {device.describe()}")
    rows = [row for codec in used for row in _rows(Timed(device, name, codec, x), max(1, repeats))]
    print_rows(rows, _COLUMNS)
    if json_path:
        write_json(rows, json_path)
    return rows


def _lacking(device: Device, codec: Codec) -> str | None:
    if codec.transforms:
        return f"codec {codec.name!r}: transforms are not timed, and its codes are those of deadzone"
    return device.lacks(codec.spec())


class Timed:
    """One codec's arrays on a device, and its operations as calls that queue work."""

    def __init__(self, device: Device, name: str, codec: Codec, x: np.ndarray) -> None:
        self.device, self.name, self.codec, self.stream = device, name, codec, device.stream()
        spec, n = codec.spec(), x.size
        self._kept: list[Memory] = []
        self._x, self._y = self._put(x), self._put(np.zeros_like(x))
        self._residual, self._acc = self._put(np.zeros_like(x)), self._put(np.zeros_like(x))
        self._out, self._size = self._room(device.max_encoded_size(spec, n)), self._room(8)
        self._status = self._room(4)
        self._scratch = self._room(max(1, device.scratch_bytes(spec, n)))
        expected = codec.encode(x, key=1)
        self._steps = codec.steps(expected) if isinstance(codec, Deadzone) else None
        self._payload, self.payload_bytes, self.n = self._put(expected), expected.size, n
        self._check(expected)

    def _room(self, nbytes: int) -> int:
        self._kept.append(self.device.allocate(nbytes))
        return self._kept[-1].address

    def _put(self, values: np.ndarray) -> int:
        address = self._room(values.nbytes)
        self.device.copy(address, values.ctypes.data, values.nbytes, TO_DEVICE)
        return address

    def _get(self, address: int, values: np.ndarray) -> np.ndarray:
        self.stream.synchronize()
        self.device.copy(values.ctypes.data, address, values.nbytes, TO_HOST)
        return values

    def _check(self, expected: np.ndarray) -> None:
        """Figures of kernels that give other bytes would mean nothing."""
        self.encode(0, self.codec)
        written = int(self._get(self._size, np.zeros(1, np.uint64))[0])
        found = self._get(self._out, np.zeros(min(written, expected.size), np.uint8))
        if written != expected.size or not np.array_equal(found, expected):
            raise DeviceError(
                f"device {self.name!r}: its payloads of {label(self.codec)} are not those of the CPU"
                f" ({written} bytes, expected {expected.size}): it fails the conformance suite"
                " (docs/adding-a-device.md); do not use it"
            )
        self.decode(False)
        status = int(self._get(self._status, np.zeros(1, np.int32))[0])
        if status != wire.OK:
            raise DeviceError(
                f"device {self.name!r}: status {status} of a good payload of {label(self.codec)}"
            )

    def copy(self) -> None:
        """A copy of the floats within the device's memory."""
        self.device.copy(self._y, self._x, 4 * self.n, WITHIN, self.stream)

    def encode(self, residual: int, codec: Codec) -> None:
        """Encode, with the steps known where the codec has steps, as in a reduction."""
        spec, x, n, f32 = codec.spec(), self._x, self.n, arrays.FLOAT32
        out, size, scratch, stream = self._out, self._size, self._scratch, self.stream
        if self._steps is None:
            self.device.encode(spec, x, residual, n, 1, 0, f32, out, size, scratch, stream)
        else:
            ends, steps = self._steps
            self.device.encode_stepped(spec, ends, steps, x, residual, n, f32, out, size, scratch, stream)

    def decode(self, add: bool) -> None:
        """Decode the payload, or add it."""
        out = self._acc if add else self._y
        places = (self._status, self._scratch, self.stream)
        self.device.decode(self.codec.spec(), self._payload, self.payload_bytes, out, self.n, add, *places)

    def until_done(self, queue: Callable[[], None]) -> Callable[[], None]:
        """What queues work, as a call that returns when the stream has ended."""

        def call() -> None:
            queue()
            self.stream.synchronize()

        return call

    def operations(self) -> dict[str, tuple[Callable[[], None], int]]:
        """Each operation, and the bytes that it cannot help reading and writing."""
        floats, payload = 4 * self.n, self.payload_bytes
        found: dict[str, tuple[Callable[[], None], int]] = {
            "encode": (lambda: self.encode(0, self.codec), floats + payload),
            "encode_ef": (lambda: self.encode(self._residual, self.codec), 3 * floats + payload),
            "decode": (lambda: self.decode(False), floats + payload),
            "decode_add": (lambda: self.decode(True), 2 * floats + payload),
        }
        if "rounding" in self.codec.options():
            stochastic = self.codec(rounding="stochastic")
            found["encode_stochastic"] = (lambda: self.encode(0, stochastic), floats + payload)
        return found


def _rows(timed: Timed, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for op, (work, moved) in timed.operations().items():
        calls = timed.until_done(work), timed.until_done(timed.copy)
        seconds, copying = alternate(*calls, repeats, clock=time.perf_counter)
        rows.append(
            {
                "codec": label(timed.codec),
                "op": op,
                "device": timed.name,
                "gbps": 4 * timed.n / seconds / 1e9,
                "moved_gbps": moved / seconds / 1e9,
                "copy_ratio": (moved / seconds) / (8 * timed.n / copying),
                "target": TARGET,
                "bits_per_element": 8 * timed.payload_bytes / timed.n,
            }
        )
    return rows
