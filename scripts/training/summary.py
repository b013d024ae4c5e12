"""What a run came to: as text, as JSON, and whether all ranks hold the same weights."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from hvd_gradflow.errors import ConfigError

from . import exchange as exchanges
from .metrics import METRICS
from .options import UsageError, parse
from .samples import Data

LOOPS = {"torch": "loop", "keras": "keras_loop"}


def run(
    parser: argparse.ArgumentParser,
    load: Callable[[argparse.Namespace], Data],
    build: Callable[[argparse.Namespace], Any],
    argv: Sequence[str] | None = None,
    metric: str = "accuracy",
) -> int:
    """Train as the options say and report, judged by one of METRICS; return the exit code."""
    options = parse(parser, argv)
    try:
        data = load(options)
        exchange = exchanges.start(options)
        model = build(options)
        summary = measured(model, data, exchange, options, metric)
    except (UsageError, ConfigError, exchanges.WeightsDifferError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    if exchange.rank == 0:
        print(text(summary))
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(summary, file, indent=2)
    if len(set(summary["weights_sha256"])) > 1:
        print(f"{parser.prog}: the ranks' weights differ: {summary['weights_sha256']}", file=sys.stderr)
        return 1
    return 0


def measured(
    model: Any,
    data: Data,
    exchange: exchanges.Exchange,
    options: argparse.Namespace,
    metric: str,
) -> dict[str, object]:
    """Train, test, and return the summary; collective."""
    loop = import_module(f"{__package__}.{LOOPS[options.framework]}")
    before, began = exchange.counters(), time.perf_counter()
    steps = loop.train(model, data, exchange, options)
    seconds = time.perf_counter() - began
    wire, uncompressed = (a - b for a, b in zip(exchange.counters(), before, strict=True))
    return {
        "metric": metric,
        metric: loop.MEASURES[metric](model, data, exchange),
        "seconds": seconds,
        "steps": steps,
        "gradient_bytes_per_step": 4 * loop.trainable_elements(model),
        "wire_bytes_per_step": wire / steps,
        "wire_ratio": uncompressed / wire if wire else None,
        "weights_sha256": exchange.weights_sha256(model),
        "compression": options.compression,
        "options": options.compression_options,
        "max_staleness": options.max_staleness,
        "world_size": exchange.size,
    }


def text(summary: dict) -> str:
    """The summary in a few lines."""
    ratio, metric = summary["wire_ratio"], METRICS[summary["metric"]]
    hashes = summary["weights_sha256"]
    same = "the same on all ranks" if len(set(hashes)) == 1 else "DIFFERENT between ranks"
    travelled = (
        f"{summary['wire_bytes_per_step'] / 1e3:.1f} kB a step and rank on the wire, {ratio:.2f} x less than "
        "uncompressed"
        if ratio
        else "nothing left the node"
    )
    chosen = ", ".join(
        (summary["compression"], *(f"{key}={value}" for key, value in summary["options"].items()))
    )
    late = f", gradients of {summary['max_staleness']} steps ago" if summary["max_staleness"] else ""
    lines = {
        "compression": f"{chosen}, {summary['world_size']} ranks{late}",
        metric.name: f"{metric.digits_of(summary[metric.key])} {metric.unit} after {summary['steps']} steps "
        f"in {summary['seconds']:.1f} s",
        "gradients": f"{summary['gradient_bytes_per_step'] / 1e3:.1f} kB a step; {travelled}",
        "weights": f"{hashes[0][:16]}..., {same}",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {said}" for name, said in lines.items())
