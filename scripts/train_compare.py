#!/usr/bin/env python3
"""Train with several compressions and seeds, one run after another, and print what it came to as a table.

    python scripts/train_compare.py none log4 adaptive adaptive:8 --seeds 0 1 2

A run whose summary lies in the folder already is not run again, so that an interrupted comparison goes on.
`adaptive:8` is adaptive with a target ratio of 8.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

SCRIPTS = Path(__file__).resolve().parent


def command(options: argparse.Namespace, way: str, seed: int, file: Path) -> list[str]:
    """The command line of one run."""
    compression, _, ratio = way.partition(":")
    words = [str(SCRIPTS / "launch.sh"), str(options.ranks), sys.executable, str(SCRIPTS / options.script)]
    words += ["--compression", compression, "--seed", str(seed), "--json", str(file)]
    return words + (["--target-ratio", ratio] if ratio else []) + options.arguments


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
    lines = [
        "| compression | accuracy, % | kB a step | less than uncompressed |",
        "| --- | --- | --- | --- |",
    ]
    for way, runs in results.items():
        accuracies = [100 * r["accuracy"] for r in runs]
        wire = mean(r["wire_bytes_per_step"] for r in runs) / 1e3
        ratios = [r["wire_ratio"] for r in runs if r["wire_ratio"]]
        saved = f"{mean(ratios):.2f} x" if ratios else "nothing left the node"
        spread = f"{mean(accuracies):.2f} ({min(accuracies):.2f} to {max(accuracies):.2f})"
        lines.append(f"| {way.replace(':', ', target ratio ')} | {spread} | {wire:.0f} | {saved} |")
    return "\n".join(lines)


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Further options go to the training script."
    )
    p.add_argument("ways", nargs="+", metavar="COMPRESSION[:RATIO]")
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
