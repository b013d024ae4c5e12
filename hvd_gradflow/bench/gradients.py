"""Bits, error and speed of the codecs on recorded gradients: ``gradflow bench codec --gradients FILE``.

Each tensor is encoded by itself, in payloads as long as those on the wire. Beside the bits a codec took
stands the least that Gaussian values of the same local energies need at the same error (see
:func:`least_bits_per_element`). ``scripts/record_gradients.py`` of the repository makes such files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow import config
from hvd_gradflow.analyze.npz import load_gradients
from hvd_gradflow.analyze.quality import least_bits_per_element, quality
from hvd_gradflow.bench.codec import TARGETS, alternate, chosen, timed_shape, work
from hvd_gradflow.bench.tables import cell, write_json
from hvd_gradflow.codec import Codec
from hvd_gradflow.errors import ConfigError

BLOCK = 32  # elements that share a variance in the bound; the smallest block of any codec
_COLUMNS = (  # key, heading, width, format
    ("codec", "codec", 26, ""),
    ("bits_per_element", "bits", 6, ".3f"),
    ("bound_bits_per_element", "bound", 6, ".3f"),
    ("similarity", "similarity", 10, ".6f"),
    ("relative_error", "error", 9, ".3e"),
    ("encode_gbps", "encode GB/s", 11, ".2f"),
    ("encode_memcpy_ratio", "/ memcpy", 8, ".2f"),
    ("encode_target", "target", 6, ".2f"),
    ("decode_add_gbps", "decode_add GB/s", 15, ".2f"),
    ("decode_add_memcpy_ratio", "/ memcpy", 8, ".2f"),
    ("decode_add_target", "target", 6, ".2f"),
)


def run_gradient_bench(
    path: str,
    json_path: str | None = None,
    megabytes: float = 64,
    codecs: list[str] | None = None,
    repeats: int = 15,
) -> list[dict[str, Any]]:
    """Measure the codecs on recorded gradients, print a table and return its rows.

    Parameters
    ----------
    path : str
        File of :func:`load_gradients`.
    json_path : str, optional
        File for the rows as JSON.
    megabytes : float
        Float32 that are timed, in units of 2**20 bytes: the gradients in a row, repeated or cut to this size.
    codecs : list of str, optional
        Names of codecs, as :func:`hvd_gradflow.bench.codec.chosen` takes them; by default all.
    repeats : int
        Runs of each operation, of which the median counts.

    Returns
    -------
    list of dict
        ``codec``; ``device``: the backend; ``elements``: how many were encoded; ``bits_per_element``: of
        the payloads, headers and checksums included; ``bound_bits_per_element``: the rate-distortion bound
        at this row's error, None where nothing is lost; ``similarity``: cosine of the angle between input
        and what was decoded; ``relative_error``: norm of what was lost over norm of the input;
        ``encode_gbps`` and ``decode_add_gbps``: 10**9 bytes of float32 in a second;
        ``encode_memcpy_ratio`` and ``decode_add_memcpy_ratio``: the same over that of copying these floats;
        ``encode_target`` and ``decode_add_target``: the least such ratio aimed at, or None.

    Raises
    ------
    ConfigError
        For an unknown codec, or a file that holds no gradients.
    OSError
        If a file cannot be read or written.
    """
    used, settings = chosen(codecs), config.load()
    everything = load_gradients(path)
    tensors = [a for a in everything.values() if a.size >= settings.min_elements]
    if not tensors:
        raise ConfigError(
            f"{path}: none of its {len(everything)} gradients has GRADFLOW_MIN_ELEMENTS="
            f"{settings.min_elements} elements, and smaller ones are never encoded: lower it"
        )
    flat = np.concatenate([a.reshape(-1) for a in tensors])
    if not flat.any():
        raise ConfigError(f"{path}: all its gradients are zero: record them at another step")
    energies, lengths = _block_energies([a.reshape(-1) for a in tensors])
    timed = np.resize(flat, max(1, round(megabytes * 2**20 / 4)))
    print(
        f"{flat.size} elements in {len(tensors)} tensors; {len(everything) - len(tensors)} are below "
        f"{settings.min_elements} elements and left out"
    )
    print("  ".join(f"{heading:>{width}}" for _, heading, width, _ in _COLUMNS))
    rows = []
    for codec in used:
        row = quality(codec, tensors, settings.chunk_kib * 256)
        lost = (row["relative_error"] * float(np.linalg.norm(flat.astype(np.float64)))) ** 2
        row["bound_bits_per_element"] = least_bits_per_element(energies, lengths, lost) if lost else None
        rows.append({**row, **_speed(codec, timed, max(1, repeats))})
        print(_line(rows[-1]), flush=True)
    if json_path:
        write_json(rows, json_path)
    return rows


def _block_energies(tensors: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Energy and length of all blocks; the last one of a tensor may be shorter."""
    starts = [np.arange(0, x.size, BLOCK) for x in tensors]
    energies = [np.add.reduceat(x.astype(np.float64) ** 2, at) for x, at in zip(tensors, starts)]
    lengths = [np.minimum(BLOCK, x.size - at) for x, at in zip(tensors, starts)]
    return np.concatenate(energies), np.concatenate(lengths)


def _speed(codec: Codec, x: np.ndarray, repeats: int) -> dict[str, float | None]:
    x = timed_shape(codec, x)
    copy, payload = np.zeros_like(x), codec.encode(x, key=1)
    found: dict[str, float | None] = {}
    for op in ("encode", "decode_add"):
        seconds, copying = alternate(work(op, codec, x, payload), lambda: np.copyto(copy, x), repeats)
        found[f"{op}_gbps"] = x.nbytes / seconds / 1e9
        found[f"{op}_memcpy_ratio"] = copying / seconds
        found[f"{op}_target"] = TARGETS.get(codec.name, {}).get(op)
    return found


def _line(row: dict[str, Any]) -> str:
    return "  ".join(cell(row[key], ">", width, kind) for key, _, width, kind in _COLUMNS)
