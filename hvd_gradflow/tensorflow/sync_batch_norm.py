"""Batch normalization over the batches of all ranks, for Keras 3 on TensorFlow."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.tensorflow.graph import refuse_xla

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="hvd_gradflow")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` with mean and variance of all ranks' samples in training.

    Every sample counts the same, also where the ranks' batches, or the masks on them, are of different sizes.
    The statistics are exchanged uncompressed by Horovod's allreduce, one a call, and one more for its
    gradient, which is that of the sum of all ranks' losses. All ranks must call their layers of this kind the
    same number of times; layers of one place must have one name on all ranks.

    Parameters
    ----------
    fused : bool
        Must be False, as in Horovod.
    **kwargs
        As in ``keras.layers.BatchNormalization``.

    Raises
    ------
    ConfigError
        With ``fused=True`` or None.
    UnsupportedError
        If Keras runs on a backend other than TensorFlow.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ConfigError("SyncBatchNormalization does not support fused=True: leave it out")
        if keras.config.backend() != "tensorflow":
            raise UnsupportedError(
                f"SyncBatchNormalization runs on Keras' TensorFlow backend, and Keras runs on"
                f" {keras.config.backend()}: set KERAS_BACKEND=tensorflow, or use"
                " keras.layers.BatchNormalization"
            )
        super().__init__(**kwargs)
        self.supports_jit = False  # tells fit() that XLA, which cannot reach other processes, is no option

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if hvd.size() == 1:
            return super()._moments(inputs, mask)
        refuse_xla("SyncBatchNormalization")
        count, mean, spread = self._local_moments(inputs, mask)
        # Squares of means cancel only in 64 bits; within a rank they do not occur.
        count, mean, spread = (tf.cast(x, tf.float64) for x in (count, mean, spread))
        sums = tf.concat([[count], count * mean, spread + count * tf.square(mean)], 0)
        sums = _summed(sums, f"HorovodAllreduce_{self.name}")
        total = tf.maximum(sums[0], 1.0)
        mean, square = tf.split(sums[1:] / total, 2)
        variance = tf.maximum(square - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _local_moments(self, inputs: Any, mask: Any) -> tuple[Any, Any, Any]:
        """Return the number of this rank's samples, their mean, and the sum of squared deviations from it."""
        axes = self._reduction_axes
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        if mask is None:
            extents = tf.gather(tf.shape(inputs), axes)
            count = tf.reduce_prod(tf.cast(extents, tf.int64))
            kept = inputs
        else:
            valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
            count = tf.reduce_sum(tf.cast(valid, tf.int64), axes)[0]
            kept = tf.where(valid, inputs, tf.zeros_like(inputs))
        mean = tf.reduce_sum(kept, axes) / tf.cast(tf.maximum(count, 1), inputs.dtype)
        deviation = kept - tf.reshape(mean, shape)
        if mask is not None:
            deviation = tf.where(valid, deviation, tf.zeros_like(deviation))
        return count, mean, tf.reduce_sum(tf.square(deviation), axes)


def _summed(values: Any, name: str) -> Any:
    """Return the sum over the ranks.

    Horovod names a gradient's allreduce after its input; where batches differ in size, so may graphs and the
    names in them, and the ranks would wait for each other for ever. So both have names of their own.
    """

    @tf.custom_gradient
    def exchange(mine: Any) -> tuple[Any, Any]:
        def gradient(upstream: Any) -> Any:
            return hvd.allreduce(upstream, op=hvd.Sum, name=f"{name}_gradient")

        return hvd.allreduce(mine, op=hvd.Sum, name=name), gradient

    return exchange(values)
