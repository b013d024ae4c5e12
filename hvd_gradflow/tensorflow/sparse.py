"""Sparse gradients (``tf.IndexedSlices``): gathered from all ranks, values compressed, duplicates summed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_gradflow import config
from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.errors import WireError
from hvd_gradflow.frontend import sparse, watchdog
from hvd_gradflow.tensorflow.choice import Choice
from hvd_gradflow.tensorflow.graph import host_op
from hvd_gradflow.tensorflow.session import session
from hvd_gradflow.tensorflow.variables import spec_of


class SparseExchange:
    """Allgathers sparse gradients by Horovod.

    Parameters
    ----------
    choice : Choice
        How the values travel.
    process_set : ProcessSet
        Who takes part.
    average : bool
        Whether the result is the average or the sum.
    counts : Counter
        Counts the bytes sent.
    """

    def __init__(self, choice: Choice, process_set: Any, average: bool, counts: Counter[str]) -> None:
        self._counts = counts
        self._choice, self._process_set, self._average = choice, process_set, average
        self._sequence: Counter[str] = Counter()

    def reduce(self, gradient: tf.IndexedSlices, shape: Any, name: str) -> tf.IndexedSlices:
        """Return the sum or average over all ranks; every index is there once, in ascending order."""
        hvd = session.horovod()
        codec = self._choice.codec_for(
            spec_of(name, shape, gradient.values.dtype, sparse=True), config.load().min_elements
        )
        dtype, rows = gradient.values.dtype, tf.TensorShape(shape).as_list()
        if dtype == tf.float64 and not codec.lossy:  # payloads hold float32
            return hvd.allreduce(gradient, op=hvd.Average if self._average else hvd.Sum,
                                 process_set=self._process_set)  # fmt: skip
        encoded = sparse.stochastic(codec)

        def pack(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
            with default_float_env():
                reducer = session.reducer_of(self._process_set)
                watchdog.enter(reducer)
                self._sequence[name] += 1
                sent = sparse.pack(
                    *_summed(indices, values.astype(np.float32)),
                    encoded,
                    sparse.key_of("sparse", name, self._sequence[name], reducer.rank),
                )
                others = reducer.size - 1
                session.on_horovods_wire(
                    self._counts, sent.nbytes * others, (values.nbytes + indices.nbytes) * others
                )
                return sent

        def combine(messages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with default_float_env():
                reducer = session.reducer_of(self._process_set)
                watchdog.leave(reducer)
                parts = list(sparse.unpack(messages, encoded, tuple(rows)))
                if not parts:
                    return np.zeros((0, *rows[1:]), dtype.as_numpy_dtype), np.zeros(0, np.int64)
                indices = np.concatenate([i[0] for i, _ in parts])
                if indices.min() < 0 or indices.max() >= rows[0]:
                    raise WireError(f"sparse gradient of {name!r}: an index outside of 0 .. {rows[0] - 1}")
                found, total = _summed(indices, np.concatenate([v for _, v in parts]))
                if self._average:
                    total = total * np.float32(1.0 / reducer.size)
                return total.astype(dtype.as_numpy_dtype), found[0]

        (message,) = host_op(pack, [gradient.values, gradient.indices], [tf.int32], "gradflow_pack", [[None]])
        gathered = hvd.allgather(
            message, name=f"gradflow.sparse.{name}", process_set=self._process_set, ignore_name_scope=True
        )
        values, indices = host_op(
            combine, [gathered], [dtype, tf.int64], "gradflow_combine", [[None, *rows[1:]], [None]]
        )
        return tf.IndexedSlices(
            values, tf.cast(indices, gradient.indices.dtype), dense_shape=gradient.dense_shape
        )


def _summed(indices: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each index once, as a row of int64, and the sums of its values, in the order given."""
    found, place = np.unique(np.asarray(indices, np.int64).reshape(-1), return_inverse=True)
    total = np.zeros((found.size, *values.shape[1:]), values.dtype)
    np.add.at(total, place, values)
    return found[np.newaxis], total
