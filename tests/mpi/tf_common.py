"""What the programs of ``test_tensorflow.py`` share; each runs on several ranks."""

from __future__ import annotations

import hashlib
import os
import sys

import horovod.tensorflow as stock
import numpy as np
import tensorflow as tf
from common import check as check
from common import raises as raises
from common import run

import hvd_gradflow.tensorflow as ours
from hvd_gradflow.tensorflow import Compression

# Relative error (norm of the difference over the norm) that one exchange, two encodings, may have.
ERROR = {
    "none": 1e-6,
    "fp16": 2e-3,
    "bf16": 2e-2,
    "int8": 3e-2,
    "int4": 0.4,
    "log4": 0.4,
    "adaptive": 0.4,
    "auto": 0.4,
    "wavelet": 0.4,
    # These leave most of a single gradient to error feedback.
    "sign1": 1.0,
    "topk": 1.1,
    "powersgd": 1.1,
}
SPARING = ("wavelet", "sign1", "topk", "powersgd")

if os.environ.get("GRADFLOW_DEVICE") == "emulated":
    import emulated_gpu  # noqa: F401
if os.environ.get("ONE_THREAD"):
    tf.config.threading.set_inter_op_parallelism_threads(1)


def main(process_sets=None) -> None:
    """Run the checks of the path named first on the command line, or those named after it."""
    path, only = sys.argv[1], sys.argv[2:]
    (stock if path == "stock" else ours).init(process_sets=process_sets)
    run(stock.rank(), barrier, only, path, before=lambda: tf.random.set_seed(1))
    barrier()


def barrier() -> None:
    stock.allreduce(tf.zeros(1), name="barrier")


def reduced(path, gradients, variables, compression="none", **options):
    """What a distributed tape makes of `gradients`, by one of the two ways that users have."""
    choice = getattr(Compression, compression) if isinstance(compression, str) else compression
    hvd = ours
    if path == "stock":
        hvd = stock
        choice = BOUND.setdefault(
            (choice, tuple(id(v) for v in variables)), choice.bind(variables, options.get("process_set"))
        )
    with tf.GradientTape() as tape:
        pairs = zip(variables, gradients, strict=True)
        loss = tf.add_n([_with_gradient(v, g) for v, g in pairs if g is not None])
    tape = hvd.DistributedGradientTape(tape, compression=choice, **options)
    return tape.gradient(loss, variables)


def _with_gradient(variable, gradient):
    """Zero, whose gradient is what is given, not touched by any arithmetic."""

    @tf.custom_gradient
    def zero(value):
        return tf.zeros(()), lambda _: tf.cast(gradient, value.dtype)

    return zero(variable)


BOUND: dict = {}


def gathered(arrays):
    """All ranks' arrays."""
    return stock.allgather_object([np.asarray(a, np.float64) for a in arrays], name="oracle")


def expected(arrays, average=True):
    """What a perfect allreduce gives: the oracle."""
    everyone = gathered(arrays)
    totals = [sum(rank[i] for rank in everyone) for i in range(len(arrays))]
    return [t / len(everyone) if average else t for t in totals]


def compare(found, wanted, error: float, what="gradients") -> None:
    """Compare with the oracle, and across ranks, bit for bit."""
    for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
        value = tf.convert_to_tensor(f).numpy().astype(np.float64)
        assert value.shape == w.shape, (i, value.shape, w.shape)
        norm, difference = np.linalg.norm(w), np.linalg.norm(value - w)
        assert difference <= error * norm + 1e-12, f"{what} {i}: error {difference / max(norm, 1e-30):.2e}"
    same_everywhere(found, what)


def same_everywhere(tensors, what="weights") -> None:
    """Assert that the ranks hold bit-identical tensors."""
    digests = [digest(t) for t in tensors]
    for other in stock.allgather_object(digests, name="digests"):
        assert other == digests, f"{what} differ: {[a == b for a, b in zip(digests, other, strict=True)]}"


def digest(tensor) -> str:
    value = np.ascontiguousarray(tf.convert_to_tensor(tensor).numpy())
    return hashlib.sha256(value.tobytes()).hexdigest()


def noise(*shape, seed=0, scale=1.0):
    """Normal numbers that differ between ranks."""
    return (np.random.default_rng([seed, stock.rank()]).normal(size=shape) * scale).astype(np.float32)
