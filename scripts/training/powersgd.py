"""The training of :mod:`training.methods` with PyTorch's own PowerSGD hook, on two processes over gloo."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from . import methods
from .data import Data, fashion
from .options import UsageError


@dataclass(frozen=True)
class Job:
    """One training: the rank of the approximation, and how many steps at the start go uncompressed."""

    seed: int
    steps: int
    rank: int = 1
    start: int = 10

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("start", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"powersgd: {name}={value!r}: expected an integer, at least {least}")
        if self.steps <= self.start:
            raise UsageError(f"powersgd: {self.steps} steps are not more than start={self.start}")
        least_saving(methods.network(0), self.rank)


def least_saving(model: nn.Module, rank: int) -> float:
    """The hook's `min_compression_rate` with which exactly the tensors of SMALL and more are compressed."""
    low, high = 0.0, math.inf
    for p in model.parameters():
        n, m = p.shape[0], p[0].numel()
        saving = n * m / ((n + m) * min(n, m, rank))
        if p.numel() < methods.SMALL:
            low = max(low, saving)
        else:
            high = min(high, saving)
    if low >= high:
        raise UsageError(f"powersgd: rank={rank} is too high for this network: it would save nothing")
    return math.sqrt(low * high)


def run(jobs: list[Job], data: Path, limit: int | None, timeout: float) -> list[dict[str, float]]:
    """Run these trainings, one after another, and return what :func:`training.methods.simulated` returns.

    The two processes end after `timeout` seconds at the latest, which raises UsageError.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (jobs, Path(folder), data, limit, timeout)
        children = mp.start_processes(
            _worker, arguments, nprocs=methods.WORKERS, join=False, start_method="spawn"
        )
        try:
            until = time.monotonic() + timeout
            while not children.join(max(0.0, until - time.monotonic())):
                if time.monotonic() >= until:
                    raise UsageError(f"powersgd: not done after {timeout:g} seconds: raise --timeout")
        except mp.ProcessExitedException as error:
            raise UsageError(f"powersgd: {error}") from error
        except mp.ProcessRaisedException as error:
            raise UsageError(f"powersgd: {str(error).strip().splitlines()[-1]}") from error
        finally:
            for process in children.processes:
                process.kill()
                process.join()
        return json.loads((Path(folder) / "results").read_text())


def _worker(
    worker: int, jobs: list[Job], folder: Path, data: Path, limit: int | None, timeout: float
) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # They meet in a file, and gloo picks ports that are free.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=worker,
        world_size=methods.WORKERS,
        timeout=timedelta(seconds=timeout),
    )
    try:
        images = fashion(limit, data)
        results = [_train(images, worker, job) for job in jobs]
        if worker == 0:
            (folder / "results").write_text(json.dumps(results))
    finally:
        dist.destroy_process_group()


def _train(data: Data, worker: int, job: Job) -> dict[str, float]:
    model = methods.network(job.seed)
    optimizer, ddp = methods.optimizer_of(model), DistributedDataParallel(model)
    state = PowerSGDState(
        None,
        matrix_approximation_rank=job.rank,
        start_powerSGD_iter=job.start,
        min_compression_rate=least_saving(model, job.rank),
        use_error_feedback=True,
        warm_start=True,
        random_seed=job.seed,
    )
    ddp.register_comm_hook(state, powerSGD_hook)
    for step, parts in enumerate(methods.batches(data, job.steps, job.seed)):
        methods.set_rate(optimizer, step, job.steps)
        optimizer.zero_grad()
        part = parts[worker]
        cross_entropy(ddp(data.train_x[part]), data.train_y[part]).backward()
        optimizer.step()
    # The hook counts by shapes what it hands to allreduce, from `start` on.
    sent = 4 * state.total_numel_after_compression / (job.steps - job.start)
    return {**methods.measured(model, data), "bytes": sent}
