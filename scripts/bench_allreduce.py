#!/usr/bin/env python3
"""Allreduce on one host: Horovod's float32 over MPI against our reducer in shared memory, in one run.

    horovodrun -np 2 python scripts/bench_allreduce.py --json allreduce.json

Both take turns; a figure is the median over the repeats of the slowest rank's time, with the quartiles beside
it. Also: a small allreduce while the main thread computes, memory per rank, and what the engine costs when
there is nothing to do.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LARGE_SPEEDUP = 3.0  # targets, printed beside the figures
SMALL_SPEEDUP = 1.0
IDLE_PERCENT = 2.0

Times = dict[str, list[float]]


def taking_turns(comm: Any, contenders: dict[str, Callable[[], None]], repeats: int) -> Times:
    """Seconds of the slowest rank for each repeat of each contender, in turn, after two warm-up rounds."""
    times: Times = {name: [] for name in contenders}
    for i in range(repeats + 2):
        for name, call in contenders.items():
            comm.Barrier()
            began = time.perf_counter()
            call()
            seconds = comm.allreduce(time.perf_counter() - began, op=_max())
            if i >= 2:
                times[name].append(seconds)
    return times


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def spread(seconds: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.percentile(seconds, [25, 50, 75])
    return {"median_s": float(median), "q25_s": float(low), "q75_s": float(high)}


def contenders(hvd: Any, reducer: Any, n: int, between: Callable[[], object] = lambda: None) -> dict:
    """The two allreduces of `n` float32, each on a buffer of its own, with `between` after the submit."""
    import torch

    theirs, ours, out = torch.ones(n), np.ones(n, np.float32), np.empty(n, np.float32)

    def horovod() -> None:
        handle = hvd.allreduce_async_(theirs, name=f"bench.{n}", op=hvd.Average)
        between()
        hvd.synchronize(handle)

    def gradflow() -> None:
        handle = reducer.allreduce_async(ours, f"bench.{n}", op="average", out=out)
        between()
        handle.wait(timeout=60)

    return {"horovod": horovod, "gradflow": gradflow}


def sizes(comm: Any, hvd: Any, reducer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Time of a small and a large allreduce, and of a small one beside a busy main thread."""
    large = options.megabytes * 1_000_000 // 4
    small = 1024  # 4 KB
    matrix = np.random.default_rng(0).standard_normal((128, 128))

    def work() -> None:  # in NumPy and in Python, which keeps the GIL
        for _ in range(20):
            np.tanh(matrix[0] @ matrix)
            sum(range(200))

    cases = {
        f"{options.megabytes} MB": (contenders(hvd, reducer, large), options.repeats),
        "4 KB": (contenders(hvd, reducer, small), options.small_repeats),
        "4 KB, busy main thread": (
            {"compute alone": work, **contenders(hvd, reducer, small, work)},
            options.small_repeats,
        ),
    }
    result = {}
    for name, (calls, repeats) in cases.items():
        times = taking_turns(comm, calls, repeats)
        rows: dict[str, Any] = {who: spread(seconds) for who, seconds in times.items()}
        rows["speedup"] = rows["horovod"]["median_s"] / rows["gradflow"]["median_s"]
        result[name] = rows
    return result


def encoded(comm: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Time of the large allreduce when each rank is a node: every byte is encoded, sent and decoded."""
    from hvd_gradflow.reduce import Reducer

    n = options.megabytes * 1_000_000 // 4
    x, out = np.random.default_rng(comm.rank).standard_normal(n).astype(np.float32), np.empty(n, np.float32)
    reducer = Reducer(comm, config=settings(ranks_per_node=1), name="encoded")

    def call(codec: str) -> Callable[[], None]:
        return lambda: reducer.allreduce_async(x, f"encoded.{codec}", codec=codec, out=out).wait(timeout=60)

    times = taking_turns(comm, {codec: call(codec) for codec in ("none", "int8", "log4")}, options.repeats)
    reducer.close()
    return {codec: spread(seconds) for codec, seconds in times.items()}


def memory(comm: Any, options: argparse.Namespace) -> dict[str, float]:
    """Growth of the resident set while a stream exchanges log4 gradients, over the bytes of the gradient."""
    import psutil

    from hvd_gradflow.reduce import Reducer, TensorSpec

    n = options.megabytes * 1_000_000 // 4 // 16
    gradients = {f"w{i}": np.ones(n, np.float32) for i in range(16)}
    outs = {name: np.ones(n, np.float32) for name in gradients}
    process = psutil.Process()
    # What earlier parts gave back must not be counted as room that this one did not need.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = process.memory_info().rss
    reducer = Reducer(comm, codec="log4", config=settings(ranks_per_node=1), name="memory")
    stream = reducer.stream([TensorSpec(name, (n,), "float32", "dense") for name in gradients], codec="log4")
    for _ in range(5):
        handles = {name: stream.submit(name, gradient) for name, gradient in gradients.items()}
        for name, handle in handles.items():
            handle.wait(timeout=60, out=outs[name])
    growth = comm.allreduce(process.memory_info().rss - before, op=_max())
    reducer.close()
    return {"gradient_bytes": 4 * n * 16, "growth_bytes": growth, "growth_ratio": growth / (4 * n * 16)}


def settings(**options: Any) -> Any:
    """The environment's settings with some changed: each figure says by itself what a node is."""
    from hvd_gradflow import config

    return config.load().with_options(**options)


def idle_percent(comm: Any, seconds: float, others: set[int]) -> dict[str, float]:
    """Processor time of this process's threads while it sleeps, in percent of a core; of the busiest rank.

    `others` are the threads that were there before ours.
    """
    import psutil

    def used() -> dict[int, float]:
        return {t.id: t.user_time + t.system_time for t in psutil.Process().threads()}

    comm.Barrier()
    before, began = used(), time.perf_counter()
    time.sleep(seconds)
    after, elapsed = used(), time.perf_counter() - began
    spent = {thread: now - before.get(thread, 0.0) for thread, now in after.items()}
    shares = {
        "gradflow": sum(s for t, s in spent.items() if t not in others) / elapsed,
        "horovod and MPI": sum(s for t, s in spent.items() if t in others) / elapsed,
    }
    return {who: 100.0 * comm.allreduce(share, op=_max()) for who, share in shares.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; collective. Horovod comes first, so that MPI is at MPI_THREAD_MULTIPLE."""
    import horovod.torch as hvd
    import psutil
    import torch

    hvd.init()
    torch.set_num_threads(1)
    from mpi4py import MPI

    from hvd_gradflow.reduce import Reducer

    comm = MPI.COMM_WORLD.Dup()
    hvd.allreduce(torch.ones(1), name="first")
    others = {thread.id for thread in psutil.Process().threads()}
    reducer = Reducer(comm, codec="none", config=settings(ranks_per_node=0), name="bench")
    result: dict[str, Any] = {"ranks": comm.size, "nodes": reducer.node_count}
    result["allreduce"] = sizes(comm, hvd, reducer, options)
    result["idle_percent"] = idle_percent(comm, options.idle_seconds, others)
    reducer.close()
    result["memory"] = memory(comm, options)
    result["encoded"] = encoded(comm, options)
    result["rank"] = comm.rank
    return result


def as_text(result: dict[str, Any]) -> str:
    """The figures with their targets."""
    lines = [
        f"{result['ranks']} ranks on {result['nodes']} node(s); median [quartiles] of the slowest rank, ms"
    ]
    for case, rows in result["allreduce"].items():
        target = LARGE_SPEEDUP if case.endswith("MB") else SMALL_SPEEDUP
        lines.append(f"{case}: {rows['speedup']:.2f} x Horovod (target: at least {target:g})")
        lines += [_line(who, row) for who, row in rows.items() if who != "speedup"]
    lines.append("the same size, each rank a node: sent by MPI on this host, encoded or not")
    lines += [_line(codec, row) for codec, row in result["encoded"].items()]
    idle, grown = result["idle_percent"], result["memory"]
    lines.append(
        f"idle: {idle['gradflow']:.2f} % of a core (target: below {IDLE_PERCENT:g}), beside "
        f"{idle['horovod and MPI']:.2f} % of Horovod and MPI"
    )
    lines.append(
        f"memory: resident set grows by {grown['growth_ratio']:.2f} x the gradient "
        f"({grown['growth_bytes'] / 1e6:.0f} MB for {grown['gradient_bytes'] / 1e6:.0f} MB) under log4: "
        "buckets, residuals and windows"
    )
    return "\n".join(lines)


def _line(who: str, row: dict[str, float]) -> str:
    low, median, high = (1e3 * row[key] for key in ("q25_s", "median_s", "q75_s"))
    return f"  {who:<14} {median:9.3f} [{low:.3f}, {high:.3f}]"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument(
        "--megabytes", type=int, default=64, help="size of the large allreduce, in 10^6 bytes (64)"
    )
    p.add_argument("--repeats", type=int, default=21, help="of the large one (21)")
    p.add_argument("--small-repeats", type=int, default=301, help="of the small ones (301)")
    p.add_argument("--idle-seconds", type=float, default=5.0, help="how long to watch an idle process (5)")
    p.add_argument("--json", metavar="FILE", help="rank 0 writes the figures there")
    options = p.parse_args()
    try:
        result = measure(options)
    except ImportError as error:
        print(f"{p.prog}: {error}; `gradflow check` says what is missing", file=sys.stderr)
        return 1
    if result.pop("rank") == 0:
        print(as_text(result))
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
