#!/usr/bin/env python3
"""Train with `deadzone`, top-k and PyTorch's PowerSGD at about equal bytes, and print a table.

    python scripts/compare_methods.py --seeds 0 1 2
    python scripts/compare_methods.py --methods none deadzone:target_ratio=40 topk:k=0.01 powersgd:rank=4

The task: a perceptron 784-256-64-10 on Fashion-MNIST, two workers with batches of 32, SGD. All methods start
from the same weights and see the same batches. Methods, each NAME or NAME:KEY=VALUE,KEY=VALUE:

none        uncompressed.
deadzone    this project's codec with its real payloads, simulated: step, target_ratio or similarity; offset.
topk        the largest k of each tensor (k=0.01: one in a hundred), with error feedback, simulated.
powersgd    PyTorch's hook on DistributedDataParallel, two processes over gloo: rank; start, the number of
            uncompressed steps that it begins with (10).

Bytes are those that a worker sends in one step, as in a reduce-scatter and an all-gather: half of what both
workers send in the first leg (their own values) and in the second (sums). Uncompressed that is the size of
the gradient. For deadzone both legs' payloads count, headers included. For top-k both legs have 4 bytes a
value and 2 or 4 a place, and the second leg has all places that either worker chose. PowerSGD sums the two
factors of each tensor by allreduce, which makes both legs: rank * (rows + columns) * 4 bytes in all. Its
`start` uncompressed steps are not counted. Tensors below 1024 elements go uncompressed everywhere, and count.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from training import methods, powersgd
from training.data import FASHION, fashion
from training.options import UsageError, key_and_value

from hvd_gradflow.errors import ConfigError

OPTIONS = {
    "none": (),
    "topk": ("k",),
    "deadzone": ("step", "target_ratio", "similarity", "offset"),
    "powersgd": ("rank", "start"),
}
DEFAULT = (
    "none",
    *(f"deadzone:target_ratio={ratio}" for ratio in (160, 80, 40)),
    *(f"topk:k={k}" for k in (0.0022, 0.0044, 0.0088)),
    *(f"powersgd:rank={rank}" for rank in (1, 2, 4)),
)


def parts(method: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a method; raises ArgumentTypeError for what is neither."""
    name, colon, rest = method.partition(":")
    if name not in OPTIONS:
        raise argparse.ArgumentTypeError(f"unknown method {name!r}; known: {', '.join(OPTIONS)}")
    options = dict(key_and_value(word) for word in rest.split(",")) if colon else {}
    for option in options:
        if option not in OPTIONS[name]:
            known = ", ".join(OPTIONS[name]) or "it has none"
            raise argparse.ArgumentTypeError(f"{name}: unknown option {option!r}; known: {known}")
    return name, options


def checked(method: str) -> str:
    """The method itself, if it can be read."""
    parts(method)
    return method


def compared(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Results by method, one for each seed."""
    data = fashion(options.limit, options.data)
    results: dict[str, list[dict[str, float]]] = {method: [] for method in options.methods}
    chosen = [(method, *parts(method), seed) for method in results for seed in options.seeds]
    by_hook = [entry for entry in chosen if entry[1] == "powersgd"]
    jobs = [powersgd.Job(seed, options.steps, **settings) for _, _, settings, seed in by_hook]
    for _, name, settings, _ in chosen:  # what is wrong with them shows before time is spent
        if name != "powersgd":
            methods.SIMULATIONS[name]([methods.SMALL], **settings)
    for method, name, settings, seed in chosen:
        if name != "powersgd":
            said(options, method, seed)
            results[method].append(methods.simulated(data, name, settings, seed, options.steps))
    if jobs:
        said(options, "powersgd", *options.seeds)
        done = powersgd.run(jobs, options.data, options.limit, options.timeout)
        for (method, *_), result in zip(by_hook, done, strict=True):
            results[method].append(result)
    return results


def said(options: argparse.Namespace, method: str, *seeds: int) -> None:
    if sys.stderr.isatty():
        print(f"{method}, seed {', '.join(map(str, seeds))}", file=sys.stderr)


def table(results: dict[str, list[dict[str, float]]], whole: int) -> str:
    """Markdown: one row for each method, most bytes first; `whole` is the size of the gradient."""
    lines = [
        "| method | kB a step and worker | less than uncompressed | test accuracy, % | training loss |",
        "| --- | ---: | ---: | --- | ---: |",
    ]
    sent = {method: mean(r["bytes"] for r in runs) for method, runs in results.items()}
    for method in sorted(results, key=lambda m: -sent[m]):
        name, options = parts(method)
        title = ", ".join((name, *(f"{key} {value}" for key, value in options.items()))).replace("_", " ")
        accuracies = [100 * r["accuracy"] for r in results[method]]
        middle, low, high = (f"{f(accuracies):.2f}" for f in (mean, min, max))
        loss = mean(r["loss"] for r in results[method])
        cells = (
            title,
            f"{sent[method] / 1e3:.1f}",
            f"{whole / sent[method]:.1f} x",
            f"{middle} ({low} to {high})",
        )
        lines.append(f"| {' | '.join(cells)} | {loss:.4f} |")
    return "\n".join(lines)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--methods", nargs="+", type=checked, default=list(DEFAULT), metavar="METHOD")
    p.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    p.add_argument("--steps", type=int, default=900, metavar="N", help="of one training; without it 900")
    p.add_argument("--limit", type=int, metavar="N", help="use only N training samples")
    p.add_argument(
        "--data", type=Path, default=FASHION, metavar="FOLDER", help="of Fashion-MNIST's four files"
    )
    p.add_argument(
        "--timeout",
        type=float,
        default=3600,
        metavar="S",
        help="seconds for all of powersgd; without it 3600",
    )
    p.add_argument("--json", metavar="FILE", help="write all results there")
    options = p.parse_args()
    for name in ("steps", "limit", "timeout"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            p.error(f"--{name} {value}: expected more than 0")
    torch.set_num_threads(1)
    whole = 4 * sum(q.numel() for q in methods.network(0).parameters())
    try:
        results = compared(options)
    except (UsageError, ConfigError) as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        return 1
    print(table(results, whole))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"gradient_bytes": whole, "seeds": options.seeds, "results": results}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
