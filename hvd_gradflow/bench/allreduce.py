"""One tensor's allreduce by Horovod, torch's DDP on Gloo and us, in turns: ``gradflow bench allreduce``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvd_gradflow.bench import data as sources
from hvd_gradflow.bench import ddp_hooks, horovod_ops, ours, report
from hvd_gradflow.bench.choice import chosen
from hvd_gradflow.bench.data import Gradients
from hvd_gradflow.bench.plot import plot_allreduce
from hvd_gradflow.bench.raw_mpi import RawExchange, volumes
from hvd_gradflow.bench.turns import Contender, take_turns
from hvd_gradflow.bench.world import World, world


def run_allreduce_bench(
    sizes: list[int],
    systems: list[str],
    codecs: list[str],
    *,
    data: str = "normal",
    model: str | None = None,
    one_tensor: bool = False,
    similarity: float | None = None,
    repeats: int | None = None,
    seconds: float = 20.0,
    rate: int | None = None,
    json_path: str | None = None,
    plot_path: str | None = None,
) -> list[dict[str, Any]]:
    """Measure, print tables and return their rows; on all ranks alike, under mpirun or horovodrun.

    Parameters
    ----------
    sizes : list of int
        Float32 bytes of the tensor.
    systems, codecs : list of str
        As of :func:`hvd_gradflow.bench.choice.chosen`.
    data, model, one_tensor
        As of :func:`hvd_gradflow.bench.data.source`.
    similarity : float, optional
        What ``deadzone`` keeps.
    repeats, seconds
        As of :func:`hvd_gradflow.bench.turns.take_turns`, for one size.
    rate : int, optional
        Of the link, bits a second.
    json_path, plot_path : str, optional
        Files that rank 0 writes.

    Returns
    -------
    list of dict
        Rows of :func:`hvd_gradflow.bench.report.row`, with ``data`` besides.

    Raises
    ------
    ConfigError
        For a name, file or option that is none.
    """
    wanted = chosen(systems, codecs)
    source = sources.source(data, model, one_tensor)
    rows = []
    with world(set(wanted)) as ranks:
        ranks.say(report.about(ranks, rate))
        for nbytes in sizes:
            gradients = source(nbytes, ranks.comm.rank, ranks.comm.size)
            rows += _measure(ranks, gradients, wanted, similarity, repeats, seconds, rate, data)
            gc.collect()  # before the next size takes its room
        if ranks.leads:
            report.write_files(rows, json_path, plot_allreduce, plot_path)
    return rows


def _measure(
    ranks: World,
    gradients: Gradients,
    wanted: dict[str, list[str]],
    similarity: float | None,
    repeats: int | None,
    seconds: float,
    rate: int | None,
    data: str,
) -> list[dict[str, Any]]:
    """Rows of one size."""
    size = report.size_text(gradients.nbytes)
    errors: dict[int, float] = {}

    def after_first(contender: Contender) -> None:
        # Later ones carry what error feedback owes. One rank is enough, as all have the same.
        if ranks.leads and contender.result is not None:
            errors[id(contender)] = gradients.relative_error(contender.result())

    with _contenders(ranks, gradients, wanted, similarity) as (contenders, raws):
        take_turns(
            ranks.comm,
            [*contenders, *raws.values()],
            ranks.link,
            repeats=repeats,
            seconds=seconds,
            after_first=after_first,
            say=lambda text: ranks.say(f"{size}: {text}"),
        )
        rows = [
            report.row(
                ranks, c, gradients.nbytes, rate, error=errors.get(id(c)), raw=raws.get(id(c)), data=data
            )
            for c in contenders
        ]
    width = max(len(report.name(found)) for found in rows)
    ranks.say(f"{report.heading(width)}   {size}")
    for found in rows:
        ranks.say(report.line(found, width))
    return rows


@contextmanager
def _contenders(
    ranks: World, gradients: Gradients, wanted: dict[str, list[str]], similarity: float | None
) -> Iterator[tuple[list[Contender], dict[int, Contender]]]:
    """Everybody who takes part, and for each of ours the plain messages of as many bytes, by its id."""
    found: list[Contender] = []
    raws: dict[int, Contender] = {}
    reducer = None
    if "gradflow" in wanted:
        from hvd_gradflow.reduce import Reducer

        reducer = Reducer(ranks.comm, name=f"bench {gradients.nbytes}")  # its residuals go with it
    for system, codecs in wanted.items():
        if system == "horovod":
            found += horovod_ops.contenders(gradients, codecs)
        elif system == "ddp":
            found += ddp_hooks.contenders(gradients, codecs)
        else:
            mine = list(ours.contenders(reducer, gradients, codecs, similarity))
            found += mine
            if len(ranks.nodes) > 1:
                raws = {id(c): _raw(ranks, c) for c in mine}
    yield found, raws
    if reducer is not None:
        reducer.close()


def _raw(ranks: World, contender: Contender) -> Contender:
    exchange, nodes = RawExchange(ranks.comm), ranks.nodes

    def call() -> None:
        encoded = contender.encoded_bytes(len(nodes))
        assert encoded is not None  # ours counts what it hands over, and has had its turn
        exchange.exchange(volumes(nodes, ranks.comm.rank, encoded))

    return Contender("mpi", contender.codec, call)
