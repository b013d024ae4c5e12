"""``DistributedOptimizer``: for Keras' optimizers, and TensorFlow 1's."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as stock
import tensorflow as tf
from horovod.tensorflow import Average, global_process_set

from hvd_gradflow.frontend.delay import checked
from hvd_gradflow.frontend.importance import importance_of
from hvd_gradflow.keras.optimizer import DistributedOptimizer as KerasOptimizer
from hvd_gradflow.tensorflow.carrier import carrier
from hvd_gradflow.tensorflow.choice import Compression
from hvd_gradflow.tensorflow.exchange import GradientExchange


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
    *,
    max_staleness: int = 0,
) -> Any:
    """Wrap an optimizer so that its gradients are reduced over the ranks before it uses them.

    As ``horovod.tensorflow.DistributedOptimizer``. A Keras optimizer is wrapped as by
    :func:`hvd_gradflow.keras.DistributedOptimizer`; one of ``tf.compat.v1.train`` as by Horovod, with our
    reduction.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or tf.compat.v1.train.Optimizer
    compression : Choice, or one of Horovod's own compressors
    name, use_locking, device_dense, device_sparse, backward_passes_per_step, average_aggregated_gradients
        As in Horovod.
    sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients
        As in Horovod.
    max_staleness : int
        As of :func:`hvd_gradflow.keras.DistributedOptimizer`.

    Raises
    ------
    UnsupportedError
        For a compression that this job cannot carry.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return KerasOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            backward_passes_per_step,
            average_aggregated_gradients,
            num_groups,
            groups,
            process_set,
            scale_local_gradients,
            max_staleness=max_staleness,
        )
    choice, theirs = carrier(compression, op)
    max_staleness = checked(max_staleness, choice)
    made = stock.DistributedOptimizer(
        optimizer,
        name,
        use_locking,
        device_dense,
        device_sparse,
        theirs,
        sparse_as_dense,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    if choice is None:
        return made
    exchange = GradientExchange(
        choice, process_set, op == Average, gradient_predivide_factor, sparse_as_dense,
        importance_of(optimizer), "optimizer", max_staleness,
    )  # fmt: skip

    def reduce(gradients: Any, variables: Any, use_generic_names: bool = False) -> list[Any]:
        return exchange.reduce(gradients, variables)

    made._allreduce_grads = reduce
    if made._agg_helper is not None:
        made._agg_helper._allreduce_grads = reduce
    made.gradflow = exchange
    return made
