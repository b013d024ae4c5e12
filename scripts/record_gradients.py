#!/usr/bin/env python3
"""Record real gradients of a training run, for measuring codecs: gradflow bench codec --gradients FILE.

    python scripts/record_gradients.py --model cnn --steps 300 --workers 2 --out cnn.npz
    python scripts/record_gradients.py --model text --steps 200 --workers 2 --out text.npz
    python scripts/record_gradients.py --sample cnn.npz text.npz --out tests/data/gradients.npz

Each array of the file is one parameter's gradient (float32, its shape kept) under the key
stepN/workerK/NAME: after N optimizer steps, on the minibatch of worker K. The workers share the weights, and
training goes on with the mean of their gradients, as it does with that many ranks, uncompressed. The key
`meta` holds a JSON text about the run.

--sample trains nothing: it takes a contiguous piece of each larger tensor of recordings, at the first step of
each, and puts the model's name before the keys.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from training import data, models
from training.loop import loss_of, optimizer_for, schedule
from training.options import UsageError

# A sample of one worker of one recording: about so many elements, and of no tensor less or of a smaller one.
SAMPLE_ELEMENTS = 16384
SAMPLE_LEAST = 1024
SAMPLE_ALIGNMENT = 32  # the smallest block of a codec


@dataclass(frozen=True)
class Run:
    """What is trained, with the defaults of the training script of the same model and data."""

    network: str
    optimizer: str
    lr: float
    batch: int
    length: int  # steps the learning rate's schedule is made for


RUNS = {
    "cnn": Run("small_net on Fashion-MNIST", "sgd", lr=0.03, batch=64, length=1400),
    "plain": Run("plain_net on Fashion-MNIST", "sgd", lr=0.03, batch=64, length=1400),
    "text": Run("text_net on the King James Bible", "adamw", lr=1e-3, batch=16, length=2000),
}


def record(
    name: str,
    steps: Sequence[int],
    workers: int = 1,
    consecutive: int = 1,
    seed: int = 0,
    limit: int | None = None,
) -> dict[str, np.ndarray]:
    """Train on one process and return the gradients by key, and `meta`."""
    run = RUNS[name]
    torch.manual_seed(seed)
    samples = data.bible(limit) if name == "text" else data.fashion(limit)
    if len(samples.train_y) // workers < run.batch:
        raise UsageError(
            f"{len(samples.train_y)} samples make no batch of {run.batch} for {workers} workers: "
            "lower --workers or raise --limit"
        )
    model = {"cnn": models.small_net, "plain": models.plain_net, "text": models.text_net}[name]()
    optimizer = optimizer_for(model, run.optimizer, run.lr, workers)
    peak = optimizer.param_groups[0]["lr"]
    wanted = {first + i for first in steps for i in range(consecutive)}
    batches = [_batches(len(samples.train_y), worker, workers, run.batch, seed) for worker in range(workers)]
    found: dict[str, np.ndarray] = {}
    losses: dict[int, float] = {}
    for step in range(max(wanted) + 1):
        optimizer.param_groups[0]["lr"] = peak * schedule(min(step, run.length - 1), run.length)
        mean = [torch.zeros_like(p) for p in model.parameters()]
        for worker in range(workers):
            indices = next(batches[worker])
            optimizer.zero_grad()
            loss = loss_of(model, samples.train_x[indices], samples.train_y[indices])
            loss.backward()
            if step in wanted:
                losses[step] = losses.get(step, 0.0) + loss.item() / workers
            for total, (key, p) in zip(mean, model.named_parameters()):
                total += p.grad / workers
                if step in wanted:
                    found[f"step{step}/worker{worker}/{key}"] = p.grad.numpy().copy()
        for total, p in zip(mean, model.parameters()):
            p.grad = total
        optimizer.step()
    about = {
        "model": name,
        **asdict(run),
        "loss_at_step": losses,
        "workers": workers,
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    return {**found, "meta": np.array(json.dumps(about))}


def sample(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Return pieces of recordings, by key, and `meta`."""
    found: dict[str, np.ndarray] = {}
    about = []
    for path in paths:
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
            about.append(json.loads(str(arrays.pop("meta"))))
            model, first = about[-1]["model"], min(map(int, about[-1]["loss_at_step"]))
        except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise UsageError(f"{path} is no recording of this script ({error}): record it anew") from error
        for worker in range(about[-1]["workers"]):
            start = f"step{first}/worker{worker}/"
            large = {k: a for k, a in arrays.items() if k.startswith(start) and a.size >= SAMPLE_LEAST}
            total = sum(a.size for a in large.values())
            for key, array in large.items():
                share = max(SAMPLE_LEAST, SAMPLE_ELEMENTS * array.size // total)
                length = share - share % SAMPLE_ALIGNMENT
                at = (array.size - length) // 2
                at -= at % SAMPLE_ALIGNMENT
                found[f"{model}/{key}"] = array.reshape(-1)[at : at + length]
    return {**found, "meta": np.array(json.dumps({"sample_of": about}))}


def _batches(n: int, worker: int, workers: int, size: int, seed: int) -> Iterator[torch.Tensor]:
    for epoch in count():
        yield from data.batches(n, worker, workers, size, seed, epoch)


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--model", choices=tuple(RUNS), default="cnn")
    p.add_argument(
        "--steps", type=int, nargs="+", default=[300], metavar="N", help="record after N optimizer steps"
    )
    p.add_argument(
        "--consecutive", type=int, default=1, metavar="N", help="steps recorded from each of these on"
    )
    p.add_argument("--workers", type=int, default=1, metavar="K", help="minibatches at the same weights")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--limit", type=int, metavar="N", help="use only N training samples")
    p.add_argument("--sample", nargs="+", metavar="FILE", help="take pieces of these recordings instead")
    p.add_argument("--out", required=True, metavar="FILE", help="the .npz file to write")
    options = p.parse_args(argv)
    for name, low in (("consecutive", 1), ("workers", 1), ("limit", 1), ("steps", 0)):
        value = getattr(options, name)
        if value is not None and min(value if isinstance(value, list) else [value]) < low:
            p.error(f"--{name} {value}: expected at least {low}")
    torch.set_num_threads(1)
    try:
        if not Path(options.out).resolve().parent.is_dir():
            raise UsageError(f"--out {options.out}: there is no such folder: make it first")
        if options.sample:
            arrays = sample(options.sample)
        else:
            asked = (options.steps, options.workers, options.consecutive, options.seed, options.limit)
            arrays = record(options.model, *asked)
        with open(options.out, "wb") as file:
            np.savez_compressed(file, **arrays)
    except (UsageError, OSError) as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
