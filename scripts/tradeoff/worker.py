"""A rank: trains one run of a plan after the other, in one process; Horovod, MPI and Gloo start once."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from training.options import UsageError
from training.samples import Data
from training.summary import measured

from hvd_gradflow.bench.world import world

from . import settings, tasks
from .journal import BEGUN, DONE, FAILED, Journal, Run
from .ways import way


def main(plan_path: Path) -> int:
    """Work through a plan (see :func:`tradeoff.launch.trained`); return the exit code."""
    plan = json.loads(plan_path.read_text())
    task, journal = tasks.BY_KEY[plan["task"]], Journal(Path(plan["journal"]))
    warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)  # torch's own Adagrad
    try:
        data = task.load(Path(plan["data"]))
    except UsageError as error:
        print(f"frontier: {error}", file=sys.stderr)
        return 1
    with world({"horovod", "ddp"}) as ranks:
        torch.set_num_threads(1)
        for recipe, words in plan["runs"]:
            run = Run(*words)
            if ranks.leads:
                journal.add(BEGUN, run)
            try:
                summary = trained(task, run, data, recipe)
            except Exception as error:
                text = "".join(traceback.format_exception_only(error)).strip()
                journal.add(FAILED, run, error=text, rank=ranks.comm.rank)
                raise
            if ranks.leads:
                journal.add(DONE, run, recipe=recipe, **summary)
    return 0


def trained(task: tasks.Task, run: Run, data: Data, recipe: dict[str, Any]) -> dict[str, Any]:
    """Train and test once; collective. All settings start from the same weights and see the same batches."""
    setting = settings.BY_KEY[run.setting]
    torch.manual_seed(run.seed)
    model = task.build(setting.sparse)
    options = argparse.Namespace(
        framework="torch",
        optimizer=recipe["optimizer"],
        lr=recipe["lr"],
        batch_size=recipe["batch_size"],
        steps=recipe["steps"],
        epochs=None,
        seed=run.seed,
        compression=setting.codec,
        compression_options=setting.options_for(task.importance),
        backward_passes=1,
        max_staleness=0,
        stock_horovod=False,
        amp=False,
    )
    exchange = way(setting.system, options)
    summary = measured(exchange.network(model), data, exchange, options, task.metric.key)
    exchange.close()
    if (known := exchange.bytes_per_step(model)) is not None:
        gradient = summary["gradient_bytes_per_step"]
        summary |= {"wire_bytes_per_step": known, "wire_ratio": gradient / known}
    return summary | {"same_weights": len(set(summary["weights_sha256"])) == 1}
