"""Sparse gradients (``tf.IndexedSlices``): gathered from all ranks, values compressed, duplicates summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
        self._min_elements = config.load().min_elements
        self._choice, self._process_set, self._average = choice, process_set, average

    def reduce(self, gradient: tf.IndexedSlices, shape: Sequence[int | None], name: str) -> tf.IndexedSlices:
        """Return the sum or average over all ranks; every index is there once, in ascending order."""
        hvd = session.horovod()
        dtype, rows = gradient.values.dtype, [shape[0], *gradient.values.shape[1:].as_list()]
        # The number of rows, where it is not known, decides only what is too small to be encoded.
        spec = spec_of(name, [rows[0] or 1 << 20, *rows[1:]], dtype, sparse=True)
        codec = self._choice.codec_for(spec, self._min_elements)
        if dtype == tf.float64 and not codec.lossy:  # payloads hold float32
            return gathered(gradient, self._process_set, self._average, f"gradflow.sparse.{name}")
        encoded = sparse.stochastic(codec)

        def pack(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
            with default_float_env():
                reducer = session.reducer_of(self._process_set, self._choice.route)
                watchdog.enter(reducer)
                _sequence[name] += 1
                sent = sparse.pack(
                    *_summed(indices, values.astype(np.float32)),
                    encoded,
                    sparse.key_of("sparse", name, _sequence[name], reducer.rank),
                )
                others = reducer.size - 1
                session.on_horovods_wire(
                    self._counts, sent.nbytes * others, (values.nbytes + indices.nbytes) * others
                )
                return sent

        def combine(messages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with default_float_env():
                reducer = session.reducer_of(self._process_set, self._choice.route)
                watchdog.leave(reducer)
                parts = list(sparse.unpack(messages, encoded, (rows[0] or 0, *rows[1:])))
                if not parts:
                    return np.zeros((0, *rows[1:]), dtype.as_numpy_dtype), np.zeros(0, np.int64)
                indices = np.concatenate([i[0] for i, _ in parts])
                if indices.min() < 0 or (rows[0] is not None and indices.max() >= rows[0]):
                    raise WireError(f"sparse gradient of {name!r}: an index outside of 0 .. {rows[0] - 1}")
                found, total = _summed(indices, np.concatenate([v for _, v in parts]))
                if self._average:
                    total = total * np.float32(1.0 / reducer.size)
                return total.astype(dtype.as_numpy_dtype), found[0]

        (message,) = host_op(pack, [gradient.values, gradient.indices], [tf.int32], "gradflow_pack", [[None]])
        messages = hvd.allgather(
            message, name=f"gradflow.sparse.{name}", process_set=self._process_set, ignore_name_scope=True
        )
        values, indices = host_op(
            combine, [messages], [dtype, tf.int64], "gradflow_combine", [[None, *rows[1:]], [None]]
        )
        return tf.IndexedSlices(
            values, tf.cast(indices, gradient.indices.dtype), dense_shape=gradient.dense_shape
        )


_sequence: Counter[str] = Counter()  # messages by name, whoever sent them: the dither of each differs


def gathered(gradient: tf.IndexedSlices, process_set: Any, average: bool, name: str) -> tf.IndexedSlices:
    """Return the sum or average over all ranks as they are: each index once, in ascending order."""
    hvd = session.horovod()
    values, indices = (
        hvd.allgather(part, name=f"{name}.{kind}", process_set=process_set, ignore_name_scope=True)
        for part, kind in ((gradient.values, "values"), (gradient.indices, "indices"))
    )
    dtype = gradient.values.dtype

    def combine(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = np.float64 if dtype == tf.float64 else np.float32
        found, total = _summed(indices, values.astype(wide))
        if average:
            total = total / wide(process_set.size())
        return total.astype(dtype.as_numpy_dtype), found[0]

    shape = [None, *gradient.values.shape[1:]]
    values, indices = host_op(
        combine, [values, indices], [dtype, tf.int64], "gradflow_combine", [shape, [None]]
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
