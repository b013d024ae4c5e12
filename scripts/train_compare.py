#!/usr/bin/env python3
"""Train with several compressions and seeds, one run after another, and print what it came to as a table.

    python scripts/train_compare.py none log4 log4:block=64 adaptive adaptive:8 --seeds 0 1 2

A run whose summary lies in the folder already is not run again, so that an interrupted comparison goes on.
Options of a compression follow its name: `log4:block=64,rounding=stochastic`; `adaptive:8` is short for
`adaptive:target_ratio=8`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

from training.metrics import METRICS

SCRIPTS = Path(__file__).resolve().parent


def command(options: argparse.Namespace, way: str, seed: int, file: Path) -> list[str]:
    """The command line of one run."""
    compression, chosen = parts(way)
    words = [str(SCRIPTS / "launch.sh"), str(options.ranks), sys.executable, str(SCRIPTS / options.script)]
    words += ["--compression", compression, "--seed", str(seed), "--json", str(file)]
    return words + [word for option in chosen for word in ("--option", option)] + options.arguments


def parts(way: str) -> tuple[str, list[str]]:
    """Name and options (KEY=VALUE) of a compression; raises ArgumentTypeError for what is neither."""
    name, colon, rest = way.partition(":")
    chosen = rest.split(",") if colon else []
    if name == "adaptive" and len(chosen) == 1 and "=" not in rest:
        chosen = [f"target_ratio={rest}"]
    if not name or any(not key or not equals for key, equals, _ in (c.partition("=") for c in chosen)):
        raise argparse.ArgumentTypeError(
            f"{way!r}: expected NAME, NAME:KEY=VALUE,KEY=VALUE or adaptive:RATIO"
        )
    return name, chosen


def checked(way: str) -> str:
    """The way itself, if it can be read."""
    parts(way)
    return way


def summary(options: argparse.Namespace, way: str, seed: int) -> dict:
    """Run once, unless it was, and return its summary; raises CalledProcessError or TimeoutExpired."""
    file = options.json_folder / f"{Path(options.script).stem}-{way.replace(':', '-')}-{seed}.json"
    if not file.exists():
        words = command(options, way, seed, file)
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=options.timeout
        )
        if done.returncode:
            sys.stderr.write(done.stdout)
            raise subprocess.CalledProcessError(done.returncode, words)
    return json.loads(file.read_text())


def table(results: dict[str, list[dict]]) -> str:
    """Markdown: one row for each compression, mean and range over the seeds."""
    first = next(iter(results.values()))[0]
    metric = METRICS[first.get("metric", "accuracy")]  # summaries of before there was a choice say nothing
    lines = [
        f"| compression | {metric.name}, {metric.unit} | kB a step | less than uncompressed |",
        "| --- | --- | --- | --- |",
    ]
    for way, runs in results.items():
        values = [r[metric.key] for r in runs]
        wire = mean(r["wire_bytes_per_step"] for r in runs) / 1e3
        ratios = [r["wire_ratio"] for r in runs if r["wire_ratio"]]
        saved = f"{mean(ratios):.2f} x" if ratios else "nothing left the node"
        low, middle, high = (metric.digits_of(f(values)) for f in (min, mean, max))
        name, chosen = parts(way)
        title = ", ".join((name, *(c.replace("_", " ").replace("=", " ") for c in chosen)))
        lines.append(f"| {title} | {middle} ({low} to {high}) | {wire:.0f} | {saved} |")
    return "\n".join(lines)


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Further options go to the training script."
    )
    p.add_argument("ways", nargs="+", type=checked, metavar="COMPRESSION[:KEY=VALUE,...]")
    p.add_argument("--script", default="train_fashion_torch.py", help="training script in this folder")
    p.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    p.add_argument("--ranks", type=int, default=2, metavar="N")
    p.add_argument("--timeout", type=float, default=3600, metavar="S", help="seconds that one run may take")
    p.add_argument("--json-folder", type=Path, default=Path("results"), metavar="FOLDER")
    options, options.arguments = p.parse_known_args()
    options.json_folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict]] = {way: [] for way in options.ways}
    try:
        for seed in options.seeds:
            for way in options.ways:
                results[way].append(summary(options, way, seed))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        return 1
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
