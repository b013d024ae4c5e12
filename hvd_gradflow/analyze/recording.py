"""Recorded statistics: their form in memory and on disk, and how they are read back.

A directory holds a file ``rankN.jsonl`` for each rank, of lines that are JSON objects, appended and never
changed. ``run`` begins a run, ``stream`` names the layers of one optimizer (the others refer to it by its
number), ``norms`` has the squared norms of one step, ``layers`` the statistics of its gradients, ``next``
their cosines with those of the step before. What a killed run left unfinished is passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_gradflow.errors import ConfigError

VERSION = 1
_TOLD = {"rms", "max", "zeros", "small", "held", "kurtosis", "quantiles", "histogram", "bands", "codecs"}
APART = 900.0  # seconds; ranks of one run start nearer to each other


@dataclass(frozen=True)
class Layer:
    """One gradient: its name, shape, and what it usually is the gradient of."""

    name: str
    shape: tuple[int, ...]
    kind: str
    elements: int


@dataclass
class Stream:
    """The gradients of one optimizer, as they were recorded.

    Attributes
    ----------
    scope : str
    layers : list of Layer
    ranks : int
        How many exchanged them.
    importance : {"energy", "coordinate"}
        How the optimizer weighs errors: all coordinates alike under Adam and its like.
    about : dict
        More to tell: ``op``, ``nodes``, ``max_staleness``, ``min_elements``, ``optimizer``; what is known.
    statistics : dict of int to dict
        Of steps, for each layer what :func:`hvd_gradflow.analyze.statistics.describe` gives, ``codecs``, and
        ``codec``: the one it travelled by. Where a gradient was zero or not finite, ``reason`` instead.
    cosines : dict of int to dict
        Of steps, for each layer the cosine with its gradient of the step before, or None.
    local : dict of int to dict
        Of steps, for each rank the squared norms of its own gradients, in the order of the layers.
    reduced : dict of int to list
        Of steps, the squared norms of the average.
    """

    scope: str
    layers: list[Layer]
    ranks: int
    importance: str = "energy"
    about: dict[str, Any] = field(default_factory=dict)
    statistics: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    cosines: dict[int, dict[str, float | None]] = field(default_factory=dict)
    local: dict[int, dict[int, list[float | None]]] = field(default_factory=dict)
    reduced: dict[int, list[float | None]] = field(default_factory=dict)


@dataclass
class _Run:
    """One run as one rank has it."""

    started: float
    lines: list[dict[str, Any]]

    @property
    def tells(self) -> bool:
        """Whether it has statistics, which the first rank writes."""
        return any(line["kind"] == "layers" for line in self.lines)


def read(path: str) -> tuple[list[Stream], list[str]]:
    """Return the last run of a directory that has samples, and remarks on what was passed over.

    Raises
    ------
    ConfigError
        If there is nothing to be read.
    OSError
        If a file cannot be read.
    """
    files = {number: file for file in Path(path).glob("rank*.jsonl") if (number := _rank(file)) is not None}
    if not files:
        raise ConfigError(
            f"{path}: no rank*.jsonl in it: set GRADFLOW_ANALYZE={path} when the training starts, on two"
            " ranks or more"
        )
    remarks: list[str] = []
    runs = {rank: _runs(file, remarks) for rank, file in sorted(files.items())}
    if not any(runs.values()):
        raise ConfigError(f"{path}: no run has written anything yet")
    told = [run.started for found in runs.values() for run in found if run.tells]
    if not told:
        raise ConfigError(
            f"{path}: no gradient was recorded: was it a run on two ranks or more, through hvd_gradflow, and"
            " is the file of its first rank here?"
        )
    several = max(len(found) for found in runs.values())
    if several > 1:
        remarks.append(f"{several} runs were recorded in {path}: this is the last one that has samples")
    streams: dict[tuple, Stream] = {}
    for found in runs.values():
        # Ranks have no number of a run in common, but begin at about the same time.
        run = min(found, key=lambda run: abs(run.started - max(told)), default=None)
        if run is not None and abs(run.started - max(told)) <= APART:
            _gather(run, streams)
    return [stream for stream in streams.values() if stream.statistics], remarks


def _rank(file: Path) -> int | None:
    digits = file.stem.removeprefix("rank")
    return int(digits) if digits.isdigit() else None


def _runs(file: Path, remarks: list[str]) -> list[_Run]:
    runs: list[_Run] = []
    bad = 0
    for line in _lines(file):
        if line is None:
            bad += 1
        elif line["kind"] == "run":
            if line.get("version") != VERSION:
                raise ConfigError(
                    f"{file}: version {line.get('version')} of the format, expected {VERSION}: read it with"
                    " the version of hvd_gradflow that wrote it"
                )
            started: Any = line.get("started")
            runs.append(_Run(float(started) if _number(started) else 0.0, []))
        elif runs:
            runs[-1].lines.append(line)
    if bad:
        remarks.append(f"{file}: {bad} line(s) cut off or damaged, passed over")
    return runs


def _lines(file: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of a file; None for a line that is none."""
    with open(file, encoding="utf-8", errors="replace") as opened:
        for text in opened:
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                yield None
                continue
            yield line if isinstance(line, dict) and isinstance(line.get("kind"), str) else None


def _gather(run: _Run, streams: dict[tuple, Stream]) -> None:
    """Add what one rank has; a line that lacks something is passed over as a whole."""
    mine: dict[int, tuple[Stream, int]] = {}
    for line in run.lines:
        try:
            if line["kind"] == "stream":
                made = _stream(line)
                key = (line["reducer"], made.scope, tuple(made.layers))
                mine[line["stream"]] = streams.setdefault(key, made), int(line["rank"])
                continue
            stream, rank = mine[line["stream"]]
            step, names = int(line["step"]), [layer.name for layer in stream.layers]
            if line["kind"] == "norms" and _numbers(line["local"], len(names)):
                stream.local.setdefault(step, {})[rank] = line["local"]
                if _numbers(line.get("reduced"), len(names)):
                    stream.reduced[step] = line["reduced"]
            elif line["kind"] == "layers":
                stream.statistics[step] = {
                    n: s for n, s in line["layers"].items() if n in names and _complete(s)
                }
            elif line["kind"] == "next":
                stream.cosines[step] = {
                    n: c for n, c in line["cosines"].items() if n in names and (c is None or _number(c))
                }
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue


def _complete(found: dict[str, Any]) -> bool:
    """Whether a layer's statistics are all there, and numbers where numbers belong."""
    if isinstance(found.get("reason"), str):
        return True
    if not found.keys() >= _TOLD or not isinstance(found["codecs"], dict):
        return False
    if not isinstance(found.get("codec", ""), str):
        return False
    bands, codecs = found["bands"], found["codecs"].values()
    lists = [found["quantiles"], found["histogram"], *([] if bands is None else [bands])]
    return (
        all(_number(found[key]) for key in _TOLD - {"quantiles", "histogram", "bands", "codecs", "kurtosis"})
        and (found["kurtosis"] is None or _number(found["kurtosis"]))
        and all(isinstance(values, list) and all(map(_number, values)) for values in lists)
        and all(0 <= band <= 1 for band in bands or ())
        and all(isinstance(c, list) and len(c) == 3 and all(map(_number, c)) and c[0] > 0 for c in codecs)
    )


def _numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(value is None or _number(value) for value in values)
    )


def _number(value: Any) -> bool:
    """Whether it is one, and of a size that a sum of squares of floats may have."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e100


def _stream(line: dict[str, Any]) -> Stream:
    layers = [
        Layer(str(name), tuple(shape), str(kind), int(elements))
        for name, shape, kind, elements in line["layers"]
    ]
    about = {str(key): value for key, value in line["about"].items() if isinstance(value, (str, int))}
    importance, ranks = line["importance"], int(line["ranks"])
    if (
        importance not in ("energy", "coordinate")
        or ranks < 1
        or any(x.elements != math.prod(x.shape) for x in layers)
    ):
        raise ValueError("no stream is like that")
    return Stream(str(line["scope"]), layers, ranks, importance, about)
