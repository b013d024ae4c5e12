"""One training step, by Horovod, torch's DDP on Gloo and us, in turns: ``gradflow bench train``."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.bench import report
from hvd_gradflow.bench.choice import chosen
from hvd_gradflow.bench.models import MODELS, Model
from hvd_gradflow.bench.plot import plot_steps
from hvd_gradflow.bench.steps import COMPUTE, Step, steps
from hvd_gradflow.bench.turns import take_turns
from hvd_gradflow.bench.world import World, world
from hvd_gradflow.errors import unknown_name


def run_train_bench(
    model: str,
    systems: list[str],
    codecs: list[str],
    *,
    repeats: int | None = None,
    seconds: float = 60.0,
    rate: int | None = None,
    json_path: str | None = None,
    plot_path: str | None = None,
) -> list[dict[str, Any]]:
    """Measure, print a table and return its rows; on all ranks alike, under mpirun or horovodrun.

    Parameters
    ----------
    model : {"mlp", "small"}
        See :class:`hvd_gradflow.bench.models.Model`.
    systems, codecs : list of str
        As of :func:`hvd_gradflow.bench.choice.chosen`.
    repeats, seconds
        As of :func:`hvd_gradflow.bench.turns.take_turns`.
    rate : int, optional
        Of the link, bits a second.
    json_path, plot_path : str, optional
        Files that rank 0 writes.

    Returns
    -------
    list of dict
        Rows of :func:`hvd_gradflow.bench.report.row`, the first one of the system ``compute``, which
        exchanges nothing. ``relative_error`` is that of the reduced gradient, in the first step that
        compresses; besides: ``relative_error_last``, the same in the step after all others, which also pays
        what error feedback owed; ``compute_seconds``; ``model``.

    Raises
    ------
    ConfigError
        For a name or option that is none.
    """
    wanted = chosen(systems, codecs)
    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
    with world({*wanted, "horovod"}) as ranks:  # ours is made of Horovod's optimizer
        ranks.say(report.about(ranks, rate))
        rows = _measure(ranks, list(steps(ranks, Model(model), wanted)), repeats, seconds, rate)
        if ranks.leads:
            report.write_files(rows, json_path, plot_steps, plot_path)
    return rows


def _measure(
    ranks: World, made: list[Step], repeats: int | None, seconds: float, rate: int | None
) -> list[dict[str, Any]]:
    model, nbytes = made[0].model.name, made[0].nbytes
    exchanging = [step for step in made if step.contender.system != COMPUTE]
    first = {id(step): step.error_of_the_next(ranks.leads) for step in exchanging}
    take_turns(
        ranks.comm,
        [step.contender for step in made],
        ranks.link,
        repeats=repeats,
        seconds=seconds,
        say=lambda text: ranks.say(f"{model}: {text}"),
    )
    last = {id(step): step.error_of_the_next(ranks.leads) for step in exchanging}
    rows = [
        report.row(
            ranks,
            step.contender,
            nbytes,
            rate,
            error=first.get(id(step)),
            relative_error_last=last.get(id(step)),
            model=model,
        )
        for step in made
    ]
    width = max(len(report.name(found)) for found in rows)
    ranks.say(
        f"{report.heading(width)}  last error   a step of {model}, {report.size_text(nbytes)} of gradients"
    )
    for found in rows:
        found["compute_seconds"] = rows[0]["seconds"]
        error = found["relative_error_last"]
        ranks.say(f"{report.line(found, width)}  {'-' if error is None else format(error, '.2e'):>10}")
    return rows
