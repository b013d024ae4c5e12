"""Variables that each rank trains for itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def scaled(gradient: Any, process_set: Any) -> Any:
    """Return the gradient of a local variable, divided by the number of ranks.

    A global gradient is the average of all ranks' losses; a local one belongs to one of them only
    (horovod/horovod, pull request 3695).
    """
    size = process_set.size()
    if gradient is None or not size:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / size
