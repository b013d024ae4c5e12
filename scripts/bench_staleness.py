#!/usr/bin/env python3
"""Step time of a perceptron on a slow link, for each max_staleness, beside computing and communicating alone.

    python scripts/netlab.py --nodes 2 --rate 100mbit -- python scripts/bench_staleness.py

Every rank must be on a node of its own. The contenders take turns in blocks of steps; a block begins when
nothing of the one before is under way, and its first steps, which have nothing to wait for, are not counted.
A block's figure is its mean step, of the slowest rank; printed are the median of the blocks and quartiles.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

Step = Callable[[], Any]


def contenders(hvd: Any, options: argparse.Namespace) -> Iterator[tuple[str, int, Step, Step]]:
    """Name, steps to leave out, a step, and what ends a block."""
    import torch
    from torch.nn.functional import cross_entropy

    widths = [784, *options.widths, 10]
    x, y = torch.randn(options.batch_size, widths[0]), torch.randint(10, (options.batch_size,))

    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        layers: list[torch.nn.Module] = []
        for a, b in pairwise(widths):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    def training(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    compression = getattr(hvd.Compression, options.compression)
    model = network()
    yield "compute alone", 0, training(model, sgd(model)), lambda: None
    model = network()
    alone = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression=compression)
    for p in model.parameters():
        p.grad = torch.randn_like(p) / p.numel() ** 0.5

    # Of gradients that no backward pass made: all are submitted in the call.
    yield "communicate alone", 0, alone.synchronize, lambda: None
    for k in options.staleness:
        model = network()
        optimizer = hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), compression=compression, max_staleness=k
        )
        yield f"max_staleness={k}", k + 1, training(model, optimizer), optimizer.drain


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--widths", type=int, nargs="*", default=[1024, 1024], help="of the hidden layers")
    parser.add_argument("--batch-size", type=int, default=128, help="of one rank (default: %(default)s)")
    parser.add_argument("--compression", default="log4", help="any name of Compression (default: log4)")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument("--blocks", type=int, default=12, help="of each contender (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="counted in each block (default: %(default)s)")
    parser.add_argument("--json", help="rank 0 writes the figures to this file")
    options = parser.parse_args()

    import torch

    import hvd_gradflow.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    found = list(contenders(hvd, options))
    blocks: dict[str, list[float]] = {name: [] for name, *_ in found}
    for block in range(options.blocks + 1):
        for name, left_out, step, end in found:
            for _ in range(left_out):
                step()
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(options.steps):
                step()
            seconds = (time.perf_counter() - began) / options.steps
            end()
            if block:  # the first one warms up
                blocks[name].append(comm.allreduce(seconds, op=MPI.MAX))
    result: dict[str, Any] = {"ranks": comm.size, "batch_size": options.batch_size, "widths": options.widths}
    for name, seconds in blocks.items():
        low, median, high = np.percentile(seconds, [25, 50, 75])
        result[name] = {"median_s": float(median), "q25_s": float(low), "q75_s": float(high)}
        if comm.rank == 0:
            print(f"{name:18} {median * 1e3:7.1f} ms [{low * 1e3:.1f}, {high * 1e3:.1f}]", flush=True)
    if options.json and comm.rank == 0:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
