"""Programs that must end in an error, one a mode: ``tf_faults.py MODE eager|graph``."""

from __future__ import annotations

import os
import signal
import sys
import time

import tensorflow as tf

import hvd_gradflow.tensorflow as hvd
from hvd_gradflow.tensorflow import Compression

GRAPH = sys.argv[2] == "graph"


def stepper(variables, compression=Compression.int8, **options):
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * v) for v in variables])
        tape = hvd.DistributedGradientTape(tape, compression=compression, **options)
        return tape.gradient(loss, variables)

    return tf.function(step) if GRAPH else step


def other_variables():
    """Rank 1 has one variable more."""
    names = ["kernel", "bias"] + ["extra"] * hvd.rank()
    stepper([tf.Variable(tf.ones((64, 64)), name=n) for n in names])()


def other_size():
    stepper([tf.Variable(tf.ones(5017 + hvd.rank()), name="w")])()


def other_clipping():
    stepper([tf.Variable(tf.ones((64, 64)), name="w")], clip_norm=1.0 if hvd.rank() else None)()


def other_clipping_of_keras():
    import keras

    import hvd_gradflow.keras as hvd_keras

    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(0.1, global_clipnorm=1 + hvd.rank()), compression=Compression.int8
    )
    weight = keras.Variable(tf.ones((64, 64)), name="w")
    optimizer.apply([tf.ones((64, 64))], [weight])


def never():
    """Rank 1 takes no third step."""
    step = stepper([tf.Variable(tf.ones((64, 64)), name="weight")])
    for _ in range(2):
        step()
    if hvd.rank() == 1:
        time.sleep(60)
    step()


def stopped():
    step = stepper([tf.Variable(tf.ones((64, 64)), name="weight")])
    for _ in range(2):
        step()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    step()


def crash():
    step = stepper([tf.Variable(tf.ones((64, 64)), name="weight")])
    for _ in range(2):
        step()
    if hvd.rank() == 1:
        raise RuntimeError("out of data")
    step()


def not_initialised():
    hvd.shutdown()
    stepper([tf.Variable(tf.ones((64, 64)), name="weight")])()


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]]()
