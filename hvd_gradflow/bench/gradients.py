"""Bits, error and speed of the codecs on recorded gradients: ``gradflow bench codec --gradients FILE``.

Each tensor is encoded by itself, in payloads as long as those on the wire. Beside the bits a codec took
stands the least that Gaussian values of the same local energies need at the same error (see
:func:`least_bits_per_element`). ``scripts/record_gradients.py`` of the repository makes such files.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_gradflow import config, device
from hvd_gradflow.bench.codec import TARGETS, alternate, chosen, label, work
from hvd_gradflow.bench.tables import cell, write_json
from hvd_gradflow.codec import Codec
from hvd_gradflow.codec.deadzone import Deadzone
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
    flat = np.concatenate(tensors)
    if not flat.any():
        raise ConfigError(f"{path}: all its gradients are zero: record them at another step")
    energies, lengths = _block_energies(tensors)
    timed = np.resize(flat, max(1, round(megabytes * 2**20 / 4)))
    print(
        f"{flat.size} elements in {len(tensors)} tensors; {len(everything) - len(tensors)} are below "
        f"{settings.min_elements} elements and left out"
    )
    print("  ".join(f"{heading:>{width}}" for _, heading, width, _ in _COLUMNS))
    rows = []
    for codec in used:
        row = _quality(codec, tensors, settings.chunk_kib * 256)
        lost = (row["relative_error"] * float(np.linalg.norm(flat.astype(np.float64)))) ** 2
        row["bound_bits_per_element"] = least_bits_per_element(energies, lengths, lost) if lost else None
        rows.append({**row, **_speed(codec, timed, max(1, repeats))})
        print(_line(rows[-1]), flush=True)
    if json_path:
        write_json(rows, json_path)
    return rows


def load_gradients(path: str) -> dict[str, np.ndarray]:
    """Return recorded gradients by key, each in one dimension.

    Parameters
    ----------
    path : str
        An ``.npz`` file of float32 arrays of any shape; its key ``meta`` is not one of them.

    Raises
    ------
    ConfigError
        If it is no such file, or a value is not finite.
    OSError
        If it cannot be read.
    """
    try:
        # NumPy leaves a file open that is cut off, where it opened it itself.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key != "meta"}
    except (ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: expected an .npz file of float32 arrays: {error}") from error
    if not arrays:
        raise ConfigError(f"{path}: holds no array: record some gradients")
    for key, array in arrays.items():
        if array.dtype != np.float32:
            raise ConfigError(f"{path}: {key} is of type {array.dtype}, expected float32")
        if not np.isfinite(array).all():
            raise ConfigError(f"{path}: {key} holds NaN or infinity: record it at another step")
    return {key: np.ascontiguousarray(array).reshape(-1) for key, array in arrays.items()}


def least_bits_per_element(energies: np.ndarray, lengths: np.ndarray, lost: float) -> float:
    """Return the rate-distortion bound of independent Gaussian blocks at a total squared error.

    Reverse water-filling (Cover and Thomas, Elements of Information Theory, 2nd edition, theorem 10.3.3):
    an element of variance v gets the error min(v, w) and takes max(0, log2(v / w) / 2) bits, with the one
    level w at which the errors add up to `lost`. The variances count as known to the decoder. No code for
    Gaussian values does better; real gradients are Gaussian at best in part, so that a codec can come
    nearer to the bound than it could on them, or even below it.

    Parameters
    ----------
    energies : ndarray of float
        Sum of squares of each block, whose elements share its mean as their variance.
    lengths : ndarray of int
        Elements of each block.
    lost : float
        Sum of squared errors over all elements, above zero.

    Returns
    -------
    float
        Bits per element, averaged over all; zero where `lost` is no less than all the energy.

    Raises
    ------
    ValueError
        If `lost` is not above zero: it would take infinitely many bits.
    """
    if not lost > 0:
        raise ValueError(f"squared error {lost}: expected more than zero")
    variances = energies / lengths
    order = np.argsort(variances)
    v, n = variances[order].astype(np.float64), lengths[order].astype(np.float64)
    # With the level between v[i-1] and v[i], the blocks before i lose their energy and the others the level.
    drowned = np.concatenate([[0.0], np.cumsum(v * n)])[:-1]
    above = np.cumsum(n[::-1])[::-1]
    at = drowned + v * above  # the error with the level at v[i]; grows with i
    i = int(np.searchsorted(at, lost))
    if i == v.size:
        return 0.0
    level = (lost - drowned[i]) / above[i]
    return float((n[i:] * np.log2(v[i:] / level)).sum() / 2 / n.sum())


def _block_energies(tensors: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Energy and length of all blocks; the last one of a tensor may be shorter."""
    starts = [np.arange(0, x.size, BLOCK) for x in tensors]
    energies = [np.add.reduceat(x.astype(np.float64) ** 2, at) for x, at in zip(tensors, starts)]
    lengths = [np.minimum(BLOCK, x.size - at) for x, at in zip(tensors, starts)]
    return np.concatenate(energies), np.concatenate(lengths)


def _quality(codec: Codec, tensors: list[np.ndarray], chunk: int) -> dict[str, Any]:
    """Bits and error over all tensors, in payloads of at most `chunk` elements."""
    coded = count = 0
    inner = norm = decoded_norm = lost = 0.0
    for tensor in tensors:
        encode = _encoder(codec, tensor)
        for first in range(0, tensor.size, chunk):
            part = tensor[first : first + chunk]
            payload = encode(part, first)
            x, y = part.astype(np.float64), codec.decode(payload).astype(np.float64)
            coded, count = coded + payload.size, count + part.size
            inner, norm, decoded_norm = inner + _dot(x, y), norm + _dot(x, x), decoded_norm + _dot(y, y)
            lost += _dot(x - y, x - y)
    return {
        "codec": label(codec),
        "device": device.backend().name,
        "elements": count,
        "bits_per_element": 8 * coded / count,
        # No angle to a vector of zeros: it has nothing of the input.
        "similarity": inner / (norm * decoded_norm) ** 0.5 if decoded_norm else 0.0,
        "relative_error": (lost / norm) ** 0.5,
    }


def _encoder(codec: Codec, tensor: np.ndarray) -> Callable[[np.ndarray, int], np.ndarray]:
    """What encodes the parts of a tensor, which have one step where the codec has steps."""
    if not isinstance(codec, Deadzone):
        return lambda part, first: codec.encode(part, key=1, first=first)
    _, steps = codec.steps(codec.encode(tensor))
    return lambda part, first: codec.encode_stepped(part, [part.size], steps)


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.dot(x, y))


def _speed(codec: Codec, x: np.ndarray, repeats: int) -> dict[str, float | None]:
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
