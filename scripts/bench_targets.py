#!/usr/bin/env python3
"""What is aimed at, beside what is measured: in a lab of several nodes on this machine, and on this host.

    python scripts/bench_targets.py --json targets.json --markdown targets.md
    python scripts/bench_targets.py --only link train
    python scripts/bench_targets.py --list

Each case is one run of `gradflow bench`, whose systems take turns; only ratios within a run count. The lab
(scripts/netlab.py) needs Linux and root: without it those cases are listed as not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from targets.cases import CASES, Case, Rows, recorded

SCRIPTS = Path(__file__).resolve().parent
TIMEOUT = 300.0  # seconds of one run
NO_LAB = 2  # exit code of netlab.py


class RunError(Exception):
    """Why a case has no figures: it failed."""


class NotHereError(RunError):
    """Why a case has no figures: this machine or this version cannot run it."""


def command(case: Case, json_path: str) -> list[str]:
    """The command line of a case."""
    bench = [sys.executable, "-m", "hvd_gradflow.cli", "bench", *shlex.split(case.bench), "--json", json_path]
    if case.where:
        return [sys.executable, str(SCRIPTS / "netlab.py"), *shlex.split(case.where), "--", *bench]
    return [str(SCRIPTS / "launch.sh"), "2", *bench]


def run(case: Case) -> Rows:
    """Run a case and return its rows.

    Raises
    ------
    NotHereError
        If it cannot run here.
    RunError
        If it fails, or takes longer than TIMEOUT.
    """
    if "auto" in case.key and not _has_auto():
        raise NotHereError("there is no codec auto")
    if case.recording:
        record(*case.recording)
    # Figures say themselves what a node is.
    environment = {key: value for key, value in os.environ.items() if key != "GRADFLOW_RANKS_PER_NODE"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        words = command(case, str(path))
        process = subprocess.Popen(words, env=environment, start_new_session=True)
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise RunError(f"took longer than {TIMEOUT:.0f} s") from None
        finally:
            _end(process)
        if case.where and code == NO_LAB:
            raise NotHereError("there can be no lab here, see above")
        if code or not path.exists():
            raise RunError(f"exit code {code}, see above")
        return json.loads(path.read_text())


def record(model: str, step: int) -> None:
    """Record the gradients of a model, once.

    Raises
    ------
    NotHereError
        If its data are not here.
    """
    path = recorded(model, step)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [
        sys.executable,
        SCRIPTS / "record_gradients.py",
        "--model",
        model,
        "--steps",
        step,
        "--workers",
        2,
    ]
    done = subprocess.run([*map(str, words), "--out", str(path)], timeout=TIMEOUT, check=False)
    if done.returncode:
        raise NotHereError("gradients cannot be recorded here, see above")


def _has_auto() -> bool:
    from hvd_gradflow.frontend.choice import names

    return "auto" in names()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher that is still there; it ends its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def machine() -> str:
    """This machine in a line."""
    info = Path("/proc/cpuinfo")
    models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    model = models[0] if models else platform.machine()
    return f"{model}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}"


def table(results: Sequence[tuple[Case, Rows | RunError]]) -> str:
    """The Markdown table: a line for each target."""
    lines = ["| case | figure | target | met |", "| --- | ---: | ---: | --- |"]
    for case, rows in results:
        for target in case.targets:
            sign = "≥" if target.at_least else "≤"
            goal = f"{sign} {target.goal:g} {target.text}"
            if isinstance(rows, RunError):
                lines.append(f"| {case.title} | not run: {rows} | {goal} | – |")
                continue
            figure, note = target.figure(rows), case.note(rows)
            met = "yes" if target.met(figure) else "no"
            lines.append(f"| {case.title}{f' ({note})' if note else ''} | {figure:.3g} | {goal} | {met} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    keys = [case.key for case in CASES]
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", nargs="+", choices=keys, metavar="CASE", help="these cases only")
    p.add_argument("--list", action="store_true", help="print the cases and their commands, run nothing")
    p.add_argument("--json", metavar="FILE", help="write all rows as JSON")
    p.add_argument("--markdown", metavar="FILE", help="write the table")
    options = p.parse_args(argv)
    cases = [case for case in CASES if options.only is None or case.key in options.only]
    if options.list:
        for case in cases:
            print(f"{case.key}: {case.title}\n    {shlex.join(command(case, 'rows.json'))}")
        return 0
    began = time.strftime("%Y-%m-%d %H:%M")
    load = os.getloadavg()[0]
    results: list[tuple[Case, Rows | RunError]] = []
    for case in cases:
        print(f"== {case.key}: {case.title}", flush=True)
        try:
            results.append((case, run(case)))
        except RunError as error:
            print(f"{p.prog}: {case.key}: {error}", file=sys.stderr)
            results.append((case, error))
    only = "".join(f" {key}" for key in options.only or [])
    words = f"`python scripts/bench_targets.py{' --only' + only if only else ''}`"
    text = f"{words}, {began}, {machine()}; load at the start {load:.1f}.\n\n{table(results)}\n"
    print(f"\n{text}")
    if options.markdown:
        Path(options.markdown).write_text(text, encoding="utf-8")
    if options.json:
        found = [
            {
                "case": case.key,
                "title": case.title,
                "command": shlex.join(command(case, "rows.json")),
                "rows": rows,
            }
            for case, rows in results
            if not isinstance(rows, RunError)
        ]
        Path(options.json).write_text(json.dumps(found, indent=2), encoding="utf-8")
    failed = (isinstance(rows, RunError) and not isinstance(rows, NotHereError) for _, rows in results)
    return int(any(failed))


if __name__ == "__main__":
    sys.exit(main())
