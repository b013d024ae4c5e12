"""The exchange of the Keras scripts, on TensorFlow."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import tensorflow as tf

from .exchange import Exchange, WeightsDifferError
from .keras_backend import keras


class KerasExchange(Exchange):
    """See :class:`training.exchange.Exchange`."""

    def prepare(self) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(self.options.threads)
        self.hvd.init()
        keras.utils.set_random_seed(self.options.seed)
        if self.options.amp:
            keras.config.set_dtype_policy("mixed_bfloat16")

    def optimizer(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        """Wrap an optimizer."""
        if self.options.amp:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        return self.hvd.DistributedOptimizer(
            optimizer,
            compression=self.compression(),
            sparse_as_dense=getattr(self.options, "sparse_as_dense", False),
            backward_passes_per_step=self.options.backward_passes,
            average_aggregated_gradients=True,
            max_staleness=self.options.max_staleness,
        )

    def broadcast(self, model: keras.Model) -> None:
        """Give all ranks the weights of rank 0."""
        self.hvd.broadcast_variables(model.weights, root_rank=0)

    def require_same_weights(self, model: keras.Model, epoch: int) -> None:
        """Raise WeightsDifferError on all ranks unless they hold the same weights, bit for bit.

        Batch-norm statistics are each rank's own during training; rank 0's are taken, so that there is one
        model.
        """
        self.hvd.broadcast_variables(model.non_trainable_weights, root_rank=0)
        found = self.weights_sha256(model)
        if len(set(found)) > 1:
            raise WeightsDifferError(f"the ranks' weights differ after epoch {epoch}: {found}")

    def mean(self, value: float, name: str) -> float:
        return float(self.hvd.allreduce(tf.constant(value, tf.float64), name=name))

    def weights(self, model: keras.Model) -> Iterable[tuple[str, bytes]]:
        for variable in model.weights:
            yield variable.path, keras.ops.convert_to_numpy(variable).tobytes()


def made(options: argparse.Namespace) -> KerasExchange:
    """Return the exchange, not yet initialized."""
    import hvd_gradflow.tensorflow.keras as hvd

    return KerasExchange(hvd, hvd, options)
