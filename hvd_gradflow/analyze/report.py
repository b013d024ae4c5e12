"""``gradflow analyze``: from a recording to a table, an object for JSON, and pictures."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from hvd_gradflow import __version__, config
from hvd_gradflow.analyze import npz, recording
from hvd_gradflow.analyze.advice import advise
from hvd_gradflow.analyze.statistics import EDGES, QUANTILES, WHITE
from hvd_gradflow.analyze.summary import TARGET, summarize
from hvd_gradflow.codec.registry import written
from hvd_gradflow.errors import ConfigError

ROWS = 40  # of the table of layers; the JSON has all


def analyze(path: str) -> dict[str, Any]:
    """Return what a recording tells.

    Parameters
    ----------
    path : str
        A directory that ``GRADFLOW_ANALYZE`` named, or an ``.npz`` file of ``scripts/record_gradients.py``.

    Returns
    -------
    dict
        ``version`` of the package; ``path``; ``remarks``: what was passed over; ``target``: the cosine that
        codecs are asked to keep; ``edges``, powers of two of the root mean square, ``quantiles`` and
        ``white_noise``, of the lists of these names in rows; ``streams``: what
        :func:`hvd_gradflow.analyze.summary.summarize` returns, each with its ``advice``.

    Raises
    ------
    ConfigError
        If it is neither, or holds nothing.
    OSError
        If it cannot be read.
    """
    if os.path.isdir(path):
        streams, remarks = recording.read(path)
    elif not os.path.exists(path):
        raise ConfigError(f"{path}: there is no such directory or file; GRADFLOW_ANALYZE={path} makes one")
    elif path.endswith(".jsonl"):
        raise ConfigError(f"{path}: name the directory that it lies in, for other ranks' files belong to it")
    else:
        streams, remarks = npz.read(path)
    usual = config.load().min_elements
    found = [summarize(s, int(s.about.get("min_elements", usual))) for s in streams]
    return {
        "version": __version__,
        "path": path,
        "remarks": remarks,
        "target": TARGET,
        "edges": list(EDGES),
        "quantiles": list(QUANTILES),
        "white_noise": list(WHITE),
        "streams": [{**summary, "advice": advise(summary)} for summary in found],
    }


def as_text(found: dict[str, Any]) -> str:
    """Return what :func:`analyze` found as tables and sentences, for people."""
    parts = [f"note: {remark}" for remark in found["remarks"]]
    for summary in found["streams"]:
        parts += ["", _head(summary), "", *_layers(summary), "", *_codecs(summary), "", *_advice(summary)]
    return "\n".join(parts).strip("\n")


def _head(summary: dict[str, Any]) -> str:
    steps = summary["steps"]
    when = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} samples, steps {steps[0]} to {steps[-1]}"
    weighs = "every coordinate (Adam)" if summary["importance"] == "coordinate" else "energy (SGD)"
    return (
        f"{summary['scope']}: {len(summary['rows'])} layers, {summary['elements']} elements; {when};"
        f" {summary['ranks']} rank(s); the optimizer weighs {weighs}"
    )


def _shares(key: str, index: int | None = None) -> Callable[[dict[str, Any]], str]:
    def text(row: dict[str, Any]) -> str:
        value = row.get(key)
        value = value[index] if value is not None and index is not None else value
        return "-" if value is None else f"{100 * value:.1f}"

    return text


def _number(key: str, kind: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "-" if row.get(key) is None else format(row[key], kind)


def _noise(row: dict[str, Any]) -> str:
    scale = row["noise_scale"]
    return "-" if scale is None else ">1e6" if scale >= 1e6 else f"{scale:.3g}"


def _own(row: dict[str, Any]) -> str:
    best = row["smallest"]
    return "-" if best is None or not row["compressed"] else written(best)


def _bytes(row: dict[str, Any]) -> str:
    best = row["smallest"]
    return "-" if best is None or not row["compressed"] else f"{row['codecs'][best]['bytes']:.3f}"


_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("layer", lambda row: row["name"]),
    ("kind", lambda row: row["kind"]),
    ("elements", lambda row: str(row["elements"])),
    ("rms", _number("rms", ".1e")),
    ("zero %", _shares("zeros")),
    ("small %", _shares("small")),
    ("90 % in %", _shares("held")),
    ("kurtosis", _number("kurtosis", ".3g")),
    ("low band %", _shares("bands", 0)),
    ("next", _number("next_cosine", ".2f")),
    ("noise", _noise),
    ("bytes", _bytes),
    (f"smallest at {TARGET}", _own),
)


def _layers(summary: dict[str, Any]) -> list[str]:
    rows = summary["rows"]
    shown = rows if len(rows) <= ROWS else sorted(rows, key=lambda row: -row["elements"])[:ROWS]
    lines = table([name for name, _ in _COLUMNS], [[text(row) for _, text in _COLUMNS] for row in shown])
    if len(shown) < len(rows):
        lines.append(f"... and {len(rows) - len(shown)} smaller layers: --json has them")
    return lines


def _codecs(summary: dict[str, Any]) -> list[str]:
    codecs = summary["model"]["codecs"]
    if not codecs:
        return ["no gradient that is large enough to be compressed was sampled"]
    by_size = sorted(codecs.items(), key=lambda one: one[1]["bytes"])
    return table(
        [
            "codec",
            "bytes an element",
            "times fewer",
            "relative error",
            "cosine",
            "cosine of the weakest layer",
        ],
        [
            [
                written(name),
                f"{c['bytes']:.4f}",
                f"{4 / c['bytes']:.1f}",
                f"{c['error']:.2e}",
                f"{c['similarity']:.6f}",
                f"{c['weakest']:.6f}",
            ]
            for name, c in by_size
        ],
    )


def _advice(summary: dict[str, Any]) -> list[str]:
    return [
        line
        for sentence in summary["advice"]
        for line in textwrap.wrap(sentence, 110, initial_indent="- ", subsequent_indent="  ")
    ]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns as wide as what is in them; numbers to the right, under their heads."""
    columns = list(zip(heads, *rows))
    widths = [max(map(len, column)) for column in columns]
    left = [not all(_is_number(text) for text in column[1:]) for column in columns]
    return [
        "  ".join(
            f"{text:{'<' if to_left else '>'}{width}}" for text, to_left, width in zip(line, left, widths)
        ).rstrip()
        for line in (heads, *rows)
    ]


def _is_number(text: str) -> bool:
    return text == "-" or re.fullmatch(r">?-?\d+(\.\d+)?(e[+-]?\d+)?", text) is not None
