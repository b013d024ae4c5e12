"""Process sets, on three ranks: ``tf_sets.py dropin|stock``."""

from __future__ import annotations

import horovod.tensorflow as stock
import keras
import numpy as np
import tensorflow as tf
from tf_common import check, digest, main, noise, reduced

import hvd_gradflow.keras as hvd

PAIR = stock.ProcessSet([0, 2])


@check
def a_tape_of_two_of_three(path):
    """The ranks of the set reduce among themselves; the other's gradients stay as they are."""
    variables = [tf.Variable(tf.zeros((64, 48))), tf.Variable(tf.zeros(7))]
    gradients = [noise(64, 48), noise(7)]
    everyone = stock.allgather_object(gradients, name="oracle")
    found = reduced(path, gradients, variables, "int8", process_set=PAIR)
    for i, g in enumerate(found):
        mine = stock.rank() in PAIR.ranks
        wanted = (everyone[0][i] + everyone[2][i]) / 2 if mine else gradients[i]
        assert np.linalg.norm(g.numpy() - wanted) <= (3e-2 if mine else 0) * np.linalg.norm(wanted)
    ranks = stock.allgather_object([digest(g) for g in found], name="digests")
    assert ranks[0] == ranks[2] != ranks[1]


@check
def an_optimizer_of_two_of_three(path):
    if path == "stock":
        return
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.int8, process_set=PAIR
    )
    variable = keras.Variable(np.zeros((64, 48), np.float32))
    optimizer.apply([tf.constant(noise(64, 48))], [variable])
    ranks = stock.allgather_object(digest(variable.value), name="digests")
    assert ranks[0] == ranks[2] != ranks[1]


if __name__ == "__main__":
    main(process_sets=[PAIR])
