"""Results as they come: a file of JSON, one line for each event, that outlives whoever writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BEGUN, DONE, FAILED = "begun", "done", "failed"


class Run(NamedTuple):
    """One training: a task, a setting, a seed."""

    task: str
    setting: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}, {self.setting}, seed {self.seed}"


class Journal:
    """The file, to append to and to read.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: str, run: Run, **more: Any) -> None:
        """Append a line; one that was cut off before it stays alone on its own."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"event": event, **run._asdict(), **more}) + "\n"
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())

    def events(self) -> list[dict[str, Any]]:
        """All whole lines; what was cut off, or is something else, is left out."""
        found = []
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and {"event", *Run._fields} <= event.keys():
                found.append(event)
        return found

    def results(self, recipes: Mapping[str, Mapping[str, Any]]) -> dict[Run, dict[str, Any]]:
        """The results of trainings by these recipes (by task and setting, see :func:`recipe_key`)."""
        found = {}
        for event in self.events():
            run = run_of(event)
            if event["event"] == DONE and event.get("recipe") == recipes.get(recipe_key(run)):
                found[run] = event
        return found

    def unfinished(self, since: int = 0) -> Run | None:
        """The run that began last, of the events from number `since` on, if nothing was said of its end."""
        last = None
        for event in self.events()[since:]:
            last = run_of(event) if event["event"] == BEGUN else None
        return last

    def failures(self, since: int = 0) -> dict[Run, str]:
        """What was said of the runs that failed, of the events from number `since` on."""
        failed: dict[Run, str] = {}
        for event in self.events()[since:]:
            if event["event"] == FAILED:
                failed.setdefault(run_of(event), event.get("error", "it failed"))  # others only follow
        return failed

    def begin_anew(self) -> None:
        """Put a file that is there aside, as ``NAME.old``."""
        if self.path.exists():
            self.path.replace(self.path.with_name(self.path.name + ".old"))


def run_of(event: Mapping[str, Any]) -> Run:
    """The run an event is of."""
    return Run(*(event[name] for name in Run._fields))


def recipe_key(run: Run) -> str:
    """Where :meth:`Journal.results` looks for a run's recipe."""
    return f"{run.task}/{run.setting}"


def in_order(settings: Sequence[str], seeds: Sequence[int], task: str) -> list[Run]:
    """All runs of a task: every setting by the first seed, then by the next."""
    return [Run(task, setting, seed) for seed in seeds for setting in settings]
