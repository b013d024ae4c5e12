"""Speed and error of the codecs on one core: ``gradflow bench codec``.

Every operation is timed in turn with a copy of the same floats, so that both see the same machine; only the
ratio of the medians carries over to another one. Arrays are allocated and touched before, as they are in a
training run that lasts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from hvd_gradflow import codec as registry
from hvd_gradflow import device
from hvd_gradflow.bench.tables import print_rows, write_json
from hvd_gradflow.codec import Codec
from hvd_gradflow.codec.deadzone import Deadzone
from hvd_gradflow.codec.registry import label, parsed
from hvd_gradflow.codec.wavelet import Wavelet
from hvd_gradflow.reduce.layout import factorizes

OPERATIONS = ("encode", "encode_ef", "encode_stochastic", "decode_add")
# What is aimed at, as a ratio to memcpy on one core with AVX2 (docs/benchmarks.md).
_NARROW = {"encode": 0.8, "encode_ef": 0.55, "encode_stochastic": 0.7, "decode_add": 0.8}
TARGETS = {
    "int8": {**_NARROW, "encode": 1.0},
    "int4": _NARROW,
    "log4": _NARROW,
    "deadzone": {"encode": 0.25, "encode_ef": 0.25, "decode_add": 0.35},
}
_CHUNK = 1 << 20  # elements made at a time
_COLUMNS = (  # name, alignment, width, format
    ("codec", "<", 8, ""),
    ("op", "<", 17, ""),
    ("device", "<", 6, ""),
    ("gbps", ">", 6, ".2f"),
    ("memcpy_ratio", ">", 12, ".2f"),
    ("target", ">", 6, ".2f"),
    ("relative_error", ">", 14, ".2e"),
    ("bits_per_element", ">", 16, ".2f"),
)


def run_codec_bench(
    json_path: str | None = None,
    megabytes: float = 64,
    codecs: list[str] | None = None,
    repeats: int = 15,
) -> list[dict[str, Any]]:
    """Time the codecs, print a table and return its rows.

    Parameters
    ----------
    json_path : str, optional
        File for the rows as JSON.
    megabytes : float
        Size of the float32 array, in 2**20 bytes.
    codecs : list of str, optional
        Names of codecs, as :func:`chosen` takes them; by default all.
    repeats : int
        Runs of each operation, of which the median counts.

    Returns
    -------
    list of dict
        ``codec``; ``op``: encode, encode_ef (with error feedback), encode_stochastic or decode_add;
        ``device``: the backend; ``gbps``: 10**9 bytes of float32 in a second; ``memcpy_ratio``: the same over
        that of copying these floats; ``target``: the least such ratio that is aimed at, or None;
        ``relative_error``: norm of what was lost over norm of the input; ``bits_per_element``: of the
        payload, header and checksum included.

    Raises
    ------
    ConfigError
        For an unknown codec.
    """
    used = chosen(codecs)
    x = gradient_like(max(1, round(megabytes * 2**20 / 4)))
    rows = [row for c in used for row in _codec_rows(c, x, max(1, repeats))]
    print_rows(rows, _COLUMNS)
    if json_path:
        write_json(rows, json_path)
    return rows


def gradient_like(n: int, seed: int = 0) -> np.ndarray:
    """Return `n` float32 values with a Laplace distribution whose width changes slowly, as gradients have."""
    rng = np.random.default_rng(seed)
    out = np.empty(n, np.float32)
    for start in range(0, n, _CHUNK):
        part = out[start : start + _CHUNK]
        part[:] = rng.laplace(scale=10.0 ** rng.uniform(-5, -2), size=part.size)
    return out


def chosen(names: list[str] | None) -> list[Codec]:
    """Return the codecs of these names, or all; ``int8:block=64`` and the like give options.

    Raises
    ------
    ConfigError
        For an unknown codec or option.
    """
    pairs = [parsed(name) for name in names or registry.names()]
    return [registry.get(name, **options) for name, options in pairs]


def timed_shape(codec: Codec, x: np.ndarray) -> np.ndarray:
    """Return what a codec is timed on: one of low rank on the largest square matrix in `x`."""
    side = math.isqrt(x.size)
    return x[: side * side].reshape(side, side) if factorizes(codec) else x


def _codec_rows(codec: Codec, x: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    x = timed_shape(codec, x)
    copy = np.zeros_like(x)
    norm = max(float(np.linalg.norm(x.astype(np.float64))), 1e-300)
    rows = []
    for op in OPERATIONS:
        if op == "encode_stochastic" and "rounding" not in codec.options():
            continue
        used = codec(rounding="stochastic") if op == "encode_stochastic" else codec
        payload = used.encode(x)
        error = float(np.linalg.norm((used.decode(payload) - x.reshape(-1)).astype(np.float64))) / norm
        seconds, copying = alternate(work(op, used, x, payload), lambda: np.copyto(copy, x), repeats)
        rows.append(
            {
                "codec": label(codec),
                "op": op,
                "device": device.backend().name,
                "gbps": x.nbytes / seconds / 1e9,
                "memcpy_ratio": copying / seconds,
                "target": TARGETS.get(codec.name, {}).get(op),
                "relative_error": error,
                "bits_per_element": 8 * payload.size / x.size,
            }
        )
    return rows


def work(op: str, codec: Codec, x: np.ndarray, payload: np.ndarray) -> Callable[[], Any]:
    """Return what is timed for one of OPERATIONS, with all memory allocated."""
    if op == "decode_add":
        acc = np.zeros_like(x)
        return lambda: codec.decode_add(payload, acc)
    residual = np.zeros_like(x) if op == "encode_ef" else None
    out = np.zeros(codec.max_encoded_size(x.size), np.uint8)
    if isinstance(codec, Wavelet):
        ends, steps = codec.steps(payload)
        room, carrier = np.empty_like(x), codec.carrier
        return lambda: carrier.encode_stepped(
            codec.forward(x, 0, room), ends, steps, residual=residual, out=out
        )
    if isinstance(codec, Deadzone):  # a reduction has the steps before it encodes
        ends, steps = codec.steps(payload)
        return lambda: codec.encode_stepped(x, ends, steps, residual=residual, out=out)
    return lambda: codec.encode(x, residual=residual, key=1, out=out)


def alternate(
    work: Callable[[], Any],
    copy: Callable[[], Any],
    repeats: int,
    clock: Callable[[], float] = time.thread_time,
) -> tuple[float, float]:
    """Return the median seconds of each, run in turn; the first run of each is not counted.

    By default the seconds are the calling thread's own: what else the machine does counts less.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 1):
        for function, taken in zip((work, copy), times):
            start = clock()
            function()
            if i:
                taken.append(clock() - start)
    return median(times[0]), median(times[1])
