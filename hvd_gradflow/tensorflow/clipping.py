"""Clipping by global norm, of what a tape has reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_gradflow.control.clipping import EPSILON


def clipped(gradients: Sequence[Any], limit: float) -> tuple[list[Any], tf.Tensor]:
    """Return gradients whose norm, all together, is at most `limit`, and their norm before that (float32).

    Sums are in double. Where the norm is not finite, gradients are returned as they are.

    Parameters
    ----------
    gradients : sequence of tf.Tensor, tf.IndexedSlices or None
        Reduced, so the indices of sparse ones are there once each.
    """
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    energies = [tf.reduce_sum(tf.square(tf.cast(v, tf.float64))) for v in values]
    norm = tf.sqrt(tf.add_n(energies)) if energies else tf.zeros((), tf.float64)
    small = tf.minimum(tf.ones_like(norm), limit / (norm + EPSILON))
    factor = tf.where(tf.math.is_finite(norm), small, tf.ones_like(norm))

    def scaled(gradient: Any) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(scaled(gradient.values), gradient.indices, gradient.dense_shape)
        return gradient * tf.cast(factor, gradient.dtype)

    return [scaled(g) for g in gradients], tf.cast(norm, tf.float32)
