#!/usr/bin/env python3
"""A training step in TensorFlow: stock Horovod's tape against ours, in one run.

    horovodrun -np 2 python scripts/bench_tensorflow.py --json step.json

The small network of the Fashion-MNIST script, its weights as ``tf.Variable``s, a step in a ``tf.function``.
The contenders take turns; a figure is the median over the repeats of the slowest rank's time. Ranks share a
node, so nothing is encoded; ``--apart`` makes every rank a node of its own and counts bytes instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

OVERHEAD = 1.05  # target: our step over stock Horovod's
BYTES = 7.0  # target: fewer wire bytes with log4


def steps(hvd: Any, ours: Any, stock_too: bool, compressions: list[str], batch: int) -> dict[str, Callable]:
    """One training step for each contender, each with a network of its own."""
    import keras
    import tensorflow as tf
    from training.keras_models import small_net

    rng = np.random.default_rng(hvd.rank())
    x = tf.constant(rng.normal(size=(batch, 28, 28, 1)).astype(np.float32))
    y = tf.constant(rng.integers(0, 10, batch))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def contender(library: Any, **options: Any) -> Callable[[], Any]:
        model = small_net()
        variables = [v.value for v in model.trainable_variables]
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            tape = library.DistributedGradientTape(tape, **options)
            optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)

        return step

    named = {"horovod": contender(hvd)} if stock_too else {}
    for name in compressions:
        named[f"gradflow {name}"] = contender(ours, compression=getattr(ours.Compression, name))
    return named


def timed(comm: Any, contenders: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank for each repeat of each contender, in turn, after three warm-up rounds."""
    from mpi4py import MPI

    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(repeats + 3):
        for name, step in contenders.items():
            comm.Barrier()
            began = time.perf_counter()
            step()
            seconds = comm.allreduce(time.perf_counter() - began, op=MPI.MAX)
            if i >= 3:
                times[name].append(seconds)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=60, help="steps of each (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples a rank (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of TensorFlow, a rank (default: %(default)s)")
    parser.add_argument("--apart", action="store_true", help="every rank a node of its own: count bytes")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    os.environ["GRADFLOW_RANKS_PER_NODE"] = "1" if options.apart else "0"

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    import horovod.tensorflow as hvd

    import hvd_gradflow.tensorflow as ours

    ours.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    result: dict[str, Any] = {"ranks": comm.size, "batch_size": options.batch_size, "apart": options.apart}
    if options.apart:
        for name in ("none", "log4"):
            (step,) = steps(hvd, ours, False, [name], options.batch_size).values()
            step()
            before = ours.wire_counters()
            for _ in range(10):
                step()
            after = ours.wire_counters()
            sent, plain = (after[k] - before[k] for k in ("wire_bytes", "wire_bytes_uncompressed"))
            result[name] = {"bytes_a_step": sent / 10, "less": plain / sent}
            if comm.rank == 0:
                print(f"{name:8} {sent / 1e4:8.1f} kB a step and rank, {plain / sent:.2f} x less", end="")
                print(f"; target {BYTES} x" if name == "log4" else "")
    else:
        contenders = steps(hvd, ours, True, ["none"], options.batch_size)
        times = timed(comm, contenders, options.repeats)
        for name, seconds in times.items():
            low, median, high = np.percentile(seconds, [25, 50, 75])
            result[name] = {"median_s": float(median), "q25_s": float(low), "q75_s": float(high)}
            if comm.rank == 0:
                print(f"{name:16} {median * 1e3:7.2f} ms [{low * 1e3:.2f}, {high * 1e3:.2f}]")
        ratio = result["gradflow none"]["median_s"] / result["horovod"]["median_s"]
        pairs = np.array(times["gradflow none"]) / np.array(times["horovod"])
        result["ratio"], result["ratio_of_pairs"] = ratio, float(np.median(pairs))
        if comm.rank == 0:
            print(f"ratio {ratio:.3f}, median of pairs {np.median(pairs):.3f}; target {OVERHEAD}")
    if options.json and comm.rank == 0:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    ours.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
