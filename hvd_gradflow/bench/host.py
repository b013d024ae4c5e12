"""What the engine costs a process on one host: ``gradflow bench host``.

A small allreduce beside a main thread that computes, processor time when there is nothing to do, and memory.
``gradflow bench allreduce`` on one host says how fast the allreduce is.
"""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Any

import numpy as np

from hvd_gradflow import config
from hvd_gradflow.bench import data, horovod_ops, ours, report
from hvd_gradflow.bench.tables import write_json
from hvd_gradflow.bench.turns import Contender, take_turns
from hvd_gradflow.bench.world import World, world

IDLE_PERCENT = 2.0  # targets, printed beside the figures
BUSY_SPEEDUP = 1.0
_SMALL = 4096  # bytes
_TENSORS = 16
_STEPS = 5


def run_host_bench(
    nbytes: int,
    *,
    repeats: int | None = None,
    seconds: float = 10.0,
    idle_seconds: float = 5.0,
    json_path: str | None = None,
) -> dict[str, Any]:
    """Measure, print and return the figures; on all ranks of one host, under mpirun or horovodrun.

    Parameters
    ----------
    nbytes : int
        Of the gradients whose memory is measured.
    repeats, seconds
        As of :func:`hvd_gradflow.bench.turns.take_turns`.
    idle_seconds : float
        How long an idle process is watched.
    json_path : str, optional
        File that rank 0 writes.

    Returns
    -------
    dict
        ``busy``: rows of :func:`hvd_gradflow.bench.report.row` for a 4 KiB allreduce beside a busy main
        thread, and that thread's work alone; ``idle_percent``: of a core, by whose threads they are, on the
        busiest rank; ``memory``: ``gradient_bytes``, ``growth_bytes`` and ``growth_ratio`` of the resident
        set under log4.
    """
    with world({"horovod"}) as ranks:
        import psutil

        from hvd_gradflow.reduce import Reducer

        others = {thread.id for thread in psutil.Process().threads()}
        reducer = Reducer(ranks.comm, config=_settings(ranks_per_node=0), name="bench")
        found: dict[str, Any] = {"ranks": ranks.comm.size, "busy": _busy(ranks, reducer, repeats, seconds)}
        found["idle_percent"] = _idle_percent(ranks, idle_seconds, others)
        reducer.close()
        found["memory"] = _memory(ranks, nbytes)
        ranks.say(_as_text(found))
        if json_path and ranks.leads:
            write_json(found, json_path)
    return found


def _settings(**options: Any) -> Any:
    """The environment's settings with some changed: each figure says by itself what a node is."""
    return config.load().with_options(**options)


def _busy(ranks: World, reducer: Any, repeats: int | None, seconds: float) -> list[dict[str, Any]]:
    """Rows of a small allreduce with work between its start and the wait, and of the work alone."""
    matrix = np.random.default_rng(0).standard_normal((128, 128))

    def work() -> None:  # in NumPy and in Python, which keeps the GIL
        for _ in range(20):
            np.tanh(matrix[0] @ matrix)
            sum(range(200))

    def beside(contender: Contender) -> Contender:
        def call() -> None:
            assert contender.start is not None
            wait = contender.start()
            work()
            wait()

        return Contender(contender.system, contender.codec, call)

    gradients = data.source("normal")(_SMALL, ranks.comm.rank, ranks.comm.size)
    made = [Contender("compute", "", work)]
    made += map(beside, horovod_ops.contenders(gradients, ["fp32"]))
    made += map(beside, ours.contenders(reducer, gradients, ["none"]))
    take_turns(ranks.comm, made, ranks.link, repeats=repeats, seconds=seconds, say=ranks.say)
    return [report.row(ranks, contender, _SMALL, None, error=None) for contender in made]


def _idle_percent(ranks: World, seconds: float, others: set[int]) -> dict[str, float]:
    """Processor time of this process's threads while it sleeps; `others` are those that were there before."""
    import psutil

    def used() -> dict[int, float]:
        return {t.id: t.user_time + t.system_time for t in psutil.Process().threads()}

    ranks.comm.Barrier()
    before, began = used(), time.perf_counter()
    time.sleep(seconds)
    after, elapsed = used(), time.perf_counter() - began
    spent = {thread: now - before.get(thread, 0.0) for thread, now in after.items()}
    shares = {
        "gradflow": sum(s for t, s in spent.items() if t not in others) / elapsed,
        "horovod and MPI": sum(s for t, s in spent.items() if t in others) / elapsed,
    }
    return {who: 100.0 * max(ranks.comm.allgather(share)) for who, share in shares.items()}


def _memory(ranks: World, nbytes: int) -> dict[str, float]:
    """Growth of the resident set while a stream exchanges log4 gradients, each rank a node of its own."""
    import psutil

    from hvd_gradflow.reduce import Reducer, TensorSpec

    n = nbytes // 4 // _TENSORS
    gradients = {f"w{i}": np.ones(n, np.float32) for i in range(_TENSORS)}
    outs = {name: np.ones(n, np.float32) for name in gradients}
    process = psutil.Process()
    # What earlier parts gave back must not be counted as room that this one did not need.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = process.memory_info().rss
    reducer = Reducer(ranks.comm, codec="log4", config=_settings(ranks_per_node=1), name="memory")
    stream = reducer.stream([TensorSpec(name, (n,), "float32", "dense") for name in gradients], codec="log4")
    for _ in range(_STEPS):
        handles = {name: stream.submit(name, gradient) for name, gradient in gradients.items()}
        for name, handle in handles.items():
            handle.wait(timeout=60, out=outs[name])
    growth = max(ranks.comm.allgather(process.memory_info().rss - before))
    reducer.close()
    total = 4 * n * _TENSORS
    return {"gradient_bytes": total, "growth_bytes": growth, "growth_ratio": growth / total}


def _as_text(found: dict[str, Any]) -> str:
    rows, idle, grown = found["busy"], found["idle_percent"], found["memory"]
    seconds = {row["system"]: row["seconds"] for row in rows}
    width = max(len(report.name(row)) for row in rows)
    speedup = seconds["horovod"] / seconds["gradflow"]
    return "\n".join(
        [
            f"{found['ranks']} ranks; median [quartiles] of the slowest one",
            f"{report.heading(width)}   4KiB beside a main thread that computes",
            *(report.line(row, width) for row in rows),
            f"busy: {speedup:.2f} x Horovod (target: at least {BUSY_SPEEDUP:g})",
            f"idle: {idle['gradflow']:.2f} % of a core (target: below {IDLE_PERCENT:g}), beside "
            f"{idle['horovod and MPI']:.2f} % of Horovod and MPI",
            f"memory: resident set grows by {grown['growth_ratio']:.2f} x the gradient "
            f"({grown['growth_bytes'] / 1e6:.0f} MB for {grown['gradient_bytes'] / 1e6:.0f} MB) under log4: "
            "buckets, residuals and windows",
        ]
    )
