"""Recorded gradients: the ``.npz`` files of ``scripts/record_gradients.py``, whole or as statistics."""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from typing import Any

import numpy as np

from hvd_gradflow import config
from hvd_gradflow.analyze.quality import candidates, examined
from hvd_gradflow.analyze.record import PER_LAYER
from hvd_gradflow.analyze.recording import Layer, Stream
from hvd_gradflow.analyze.statistics import cosine, energy, sample
from hvd_gradflow.errors import ConfigError
from hvd_gradflow.reduce.layout import kind_of

_KEY = re.compile(r"(?:(?P<model>[^/]+)/)?step(?P<step>\d+)/worker(?P<worker>\d+)/(?P<name>.+)")
_BY_COORDINATE = ("adam", "adamw")  # as the recording calls optimizers


def load_gradients(path: str) -> dict[str, np.ndarray]:
    """Return recorded gradients by key, each in its shape.

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
    return {key: np.asarray(array, order="C") for key, array in arrays.items()}


def read(path: str) -> tuple[list[Stream], list[str]]:
    """Return the statistics of recorded gradients, a stream for each model, and remarks.

    Workers count as ranks. Keys of another form are layers by that name, of one rank and one step.

    Raises
    ------
    ConfigError
        As :func:`load_gradients`.
    OSError
        If the file cannot be read.
    """
    loaded, about = load_gradients(path), _about(path)
    arrays = {key: array.reshape(-1) for key, array in loaded.items()}
    shapes = {key: array.shape for key, array in loaded.items()}
    optimizers = {a.get("model"): a.get("optimizer") for a in about.get("sample_of", [about])}
    found: dict[str, dict[int, dict[int, dict[str, np.ndarray]]]] = {}
    for key, array in arrays.items():
        match = _KEY.fullmatch(key)
        model, step, worker, name = match.groups() if match else (None, 0, 0, key)
        steps = found.setdefault(model or about.get("model") or "recording", defaultdict(dict))
        steps[int(step)].setdefault(int(worker), {})[name] = array
        shapes[name] = shapes.pop(key, array.shape)
    whole = "sample_of" not in about  # else shapes are lost
    streams = [
        _stream(model, steps, {n: s if whole else () for n, s in shapes.items()}, optimizers.get(model))
        for model, steps in found.items()
    ]
    return streams, [] if whole else [
        f"{path} holds parts of gradients: norms and shares are those of the parts"
    ]


def _about(path: str) -> dict[str, Any]:
    """What a recording says of itself."""
    with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
        try:
            about = json.loads(str(file["meta"])) if "meta" in file.files else {}
        except ValueError:
            about = {}
    return about if isinstance(about, dict) else {}


def _stream(
    model: str,
    steps: dict[int, dict[int, dict[str, np.ndarray]]],
    shapes: dict[str, tuple[int, ...]],
    optimizer: str | None,
) -> Stream:
    first = next(iter(steps.values()))
    sizes = {name: a.size for arrays in first.values() for name, a in arrays.items()}
    layers = [
        Layer(name, shapes[name], kind_of(shapes[name]) if shapes[name] else "other", size)
        for name, size in sizes.items()
    ]
    ranks = max(len(workers) for workers in steps.values())
    importance = "coordinate" if str(optimizer).lower() in _BY_COORDINATE else "energy"
    stream = Stream(model, layers, ranks, importance, {"optimizer": optimizer})
    codecs, chunk = candidates(), config.load().chunk_kib * 256

    def looked_at(name: str, x: np.ndarray) -> dict[str, Any]:
        piece, shape = sample(x, PER_LAYER), shapes[name]
        return examined(piece, codecs, chunk, shape if shape and piece.size == x.size else None)

    for step, workers in sorted(steps.items()):
        one = workers[min(workers)]
        stream.statistics[step] = {n: looked_at(n, x) for n, x in one.items()}
        before = steps.get(step - 1, {}).get(min(workers), {})
        if before:
            stream.cosines[step] = {n: cosine(x, before[n]) for n, x in one.items() if n in before}
        everywhere = [n for n in sizes if all(n in arrays for arrays in workers.values())]
        if len(workers) == ranks > 1 and len(everywhere) == len(layers):
            stream.local[step] = {w: [energy(arrays[n]) for n in sizes] for w, arrays in workers.items()}
            stream.reduced[step] = [energy(np.mean([a[n] for a in workers.values()], axis=0)) for n in sizes]
    return stream
