"""Keras on TensorFlow; see :mod:`hvd_gradflow.keras.bridge`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.reduce.route import Route
from hvd_gradflow.tensorflow import ops
from hvd_gradflow.tensorflow.broadcast import broadcast_variables
from hvd_gradflow.tensorflow.carrier import carrier
from hvd_gradflow.tensorflow.exchange import GradientExchange
from hvd_gradflow.tensorflow.graph import host_op, refuse_xla
from hvd_gradflow.tensorflow.local import scaled
from hvd_gradflow.tensorflow.session import session
from hvd_gradflow.tensorflow.sparse import gathered
from hvd_gradflow.tensorflow.variables import plain

__all__ = [
    "all_finite",
    "all_finite_by_horovod",
    "broadcast",
    "carrier",
    "hvd",
    "make_exchange",
    "maximum",
    "mean",
    "ops",
    "plain",
    "scaled",
    "session",
    "stock_reduce",
    "tensor",
    "tracing",
]


def make_exchange(
    choice: Any,
    process_set: Any,
    average: bool,
    predivide: float,
    sparse_as_dense: bool,
    importance: str,
    max_staleness: int,
    alike: Mapping[str, object],
) -> GradientExchange:
    """Return the exchange of one optimizer."""
    return GradientExchange(
        choice,
        process_set,
        average,
        predivide,
        sparse_as_dense,
        importance,
        "optimizer",
        max_staleness,
        alike,
    )


def stock_reduce(
    compression: Any, op: int, predivide: float, sparse_as_dense: bool, process_set: Any, name: str
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """Return a function that reduces gradients by Horovod's own operations."""
    prescale, postscale = (1.0 / predivide, predivide) if op == hvd.Average else (1.0, 1.0)

    def one(gradient: Any, name: str) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            if not sparse_as_dense:
                return gathered(gradient, process_set, op == hvd.Average, name)
            gradient = tf.convert_to_tensor(gradient)
        return hvd.allreduce(
            gradient, op=op, compression=compression, prescale_factor=prescale, postscale_factor=postscale,
            name=name, process_set=process_set, ignore_name_scope=True,
        )  # fmt: skip

    def reduce(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if not process_set.included() or process_set.size() == 1:
            return list(gradients)
        return [one(g, f"{name}.gradient.{i}") for i, g in enumerate(gradients)]

    return reduce


def maximum(tensor: Any, process_set: Any, name: str) -> Any:
    """Return the largest value over the ranks, element by element."""
    if not process_set.included() or process_set.size() == 1:
        return tensor
    tensor = tf.convert_to_tensor(plain(tensor))
    wide = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor
    return tf.cast(hvd.allreduce(wide, op=hvd.Max, name=name, process_set=process_set), tensor.dtype)


def all_finite(flag: Any, process_set: Any, route: Route, names: list[str]) -> Any:
    """Return whether `flag`, a boolean scalar, is true on every rank."""
    refuse_xla("the exchange of gradients")
    if not process_set.included() or process_set.size() == 1:
        return flag

    def agree(mine: np.ndarray) -> np.ndarray:
        with default_float_env():
            if not names:
                names.append(session.reducer_and_scope(process_set, route, "finite")[1])
            reducer = session.reducer_of(process_set, route)
            bad = np.array([not mine], np.float32)
            return np.asarray(reducer.allreduce(bad, names[0], op="sum", codec="none")[0] == 0)

    return host_op(agree, [flag], [tf.bool], "gradflow_finite", [()])[0]


def all_finite_by_horovod(flag: Any, process_set: Any, name: str) -> Any:
    """As :func:`all_finite`, where our reducer cannot run."""
    if not process_set.included() or process_set.size() == 1:
        return flag
    bad = tf.cast(tf.logical_not(flag), tf.float32)
    total = hvd.allreduce(bad, op=hvd.Sum, name=name, process_set=process_set, ignore_name_scope=True)
    return tf.equal(total, 0.0)


def tracing() -> bool:
    """Return whether a graph is being traced."""
    return not tf.executing_eagerly()


def broadcast(variables: Sequence[Any], root_rank: int) -> None:
    """Broadcast Keras variables from one rank to all."""
    broadcast_variables(variables, root_rank)


def mean(values: Sequence[float]) -> list[float]:
    """Return the averages over the ranks."""
    if not values:
        return []
    return [float(v) for v in hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Average).numpy()]


def tensor(value: Any) -> Any:
    """Return a value as a tensor."""
    return tf.convert_to_tensor(plain(value))
