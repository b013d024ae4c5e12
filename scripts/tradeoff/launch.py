"""The launches: all runs of a task in one, and another one for what a crash left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import running

from .journal import FAILED, Journal, Run, recipe_key
from .settings import BY_KEY

SCRIPTS = Path(__file__).resolve().parents[1]
RANKS = 2


class LaunchError(Exception):
    """A launch ended before its first training began."""


def trained(
    runs: Sequence[Run],
    recipes: Mapping[str, Mapping[str, Any]],
    journal: Journal,
    data: Path,
    timeout: float,
    say: Callable[[str], None],
) -> None:
    """Train these runs of one task in as few launches as can be; results go to the journal.

    They come in this order, but that those which take other variables are in launches of their own.

    Where a run fails, so do those of its setting that come after it; all others go on, in a new launch.

    Parameters
    ----------
    runs : sequence of Run
    recipes : mapping
        By :func:`tradeoff.journal.recipe_key`.
    journal : Journal
    data : Path
        Folder of Fashion-MNIST.
    timeout : float
        Seconds that one run may take, the start of a launch included.
    say : callable
        Tells a line of progress.

    Raises
    ------
    LaunchError
        See there.
    """
    left = list(runs)
    while left:
        before = len(journal.events())
        environment = BY_KEY[left[0].setting].environment
        together = [run for run in left if BY_KEY[run.setting].environment == environment]
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.json"
            plan.write_text(json.dumps(_plan(together, recipes, journal, data)))
            ended = _launch(plan, journal.path, timeout, environment)
        said = len(journal.events()) - before
        if not said:
            raise LaunchError(f"{left[0].task}: nothing was trained: {ended or 'see above'}")
        if (begun := journal.unfinished(before)) is not None:
            journal.add(FAILED, begun, error=ended or "it ended without a result, with exit code 0")
        failed = journal.failures(before)
        for run, error in failed.items():
            say(f"{run}: failed, and is left out: {error}")
        done = set(journal.results(recipes))
        settings = {run.setting for run in failed}
        left = [run for run in left if run not in done and run.setting not in settings]
        if not failed and not done.issuperset(together):
            raise LaunchError(f"{left[0].task}: it ended early: {ended or 'exit code 0'}")


def _plan(
    runs: Sequence[Run], recipes: Mapping[str, Mapping[str, Any]], journal: Journal, data: Path
) -> dict[str, Any]:
    return {
        "task": runs[0].task,
        "journal": str(journal.path.resolve()),
        "data": str(data),
        "runs": [(recipes[recipe_key(run)], run) for run in runs],
    }


def _launch(plan: Path, watched: Path, timeout: float, more: Mapping[str, str]) -> str | None:
    """Start the ranks and wait for their end, or until the journal did not grow for `timeout` seconds.

    Returns why they ended, or None where all went well.
    """
    mark = uuid.uuid4().hex
    words = [str(SCRIPTS / "launch.sh"), str(RANKS), sys.executable, str(SCRIPTS / "frontier.py")]
    environment = {**os.environ, running.MARK: mark, "GRADFLOW_RANKS_PER_NODE": "1", **more}
    # Who is asked to end takes the ranks with it: they are in a session of their own.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    process = subprocess.Popen(
        [*words, "--worker", str(plan)], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        size, grew = _size(watched), time.monotonic()
        while True:
            try:
                code = process.wait(0.5)
                return f"exit code {code}, see above" if code else None
            except subprocess.TimeoutExpired:
                pass
            if (now := _size(watched)) != size:
                size, grew = now, time.monotonic()
            elif time.monotonic() - grew > timeout:
                return f"took longer than {timeout:g} s (--timeout)"
    finally:
        running.end(process, mark, sweep=True)
        signal.signal(signal.SIGTERM, before)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
