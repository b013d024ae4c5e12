"""Broadcasts of variables, Keras 3's among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from horovod.tensorflow import ProcessSet, broadcast, functions, global_process_set

from hvd_gradflow.tensorflow.variables import plain


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Broadcast variables from one rank to all; as Horovod's, for Keras 3 variables too.

    Parameters
    ----------
    variables : iterable of tf.Variable or keras.Variable
    root_rank, process_set, inplace
        As in Horovod.
    """
    found = [plain(v) for v in variables]
    carried = [v for v in found if v.dtype.base_dtype not in _AS]
    result = functions.broadcast_variables(carried, root_rank, process_set, inplace) if carried else None
    for index, variable in enumerate(found):
        other = _AS.get(variable.dtype.base_dtype)
        if other is not None:
            bits = broadcast(
                tf.bitcast(variable, other), root_rank, f"gradflow.broadcast.{index}", True, process_set
            )
            variable.assign(tf.bitcast(bits, variable.dtype.base_dtype))
    return result


# What Horovod does not broadcast, and what it travels as: 16-bit floats, seeds of random generators.
_AS = {tf.bfloat16: tf.float16, tf.uint32: tf.int32, tf.uint64: tf.int64}
