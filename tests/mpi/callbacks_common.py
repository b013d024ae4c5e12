"""What ``keras_callbacks.py``, ``keras_elastic.py`` and ``keras_layers.py`` share."""

from __future__ import annotations

import hashlib
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from common import check as check
from common import raises as raises
from common import run

from hvd_gradflow.keras.bridge import bridge

TENSORFLOW = keras.config.backend() == "tensorflow"
if TENSORFLOW:
    pass

side = bridge()
hvd = side.hvd


def main() -> None:
    side.session.init()

    def before() -> None:
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)

    run(hvd.rank(), lambda: hvd.allgather_object(0, name="barrier"), sys.argv[1:], before=before)


def numpy(variables):
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


def everyones(variables):
    """One digest a variable, for each rank."""
    digests = [hashlib.sha256(v.tobytes()).hexdigest() for v in numpy(variables)]
    return hvd.allgather_object(digests, name="digests")


def assert_equal(variables, what="weights"):
    ranks = everyones(variables)
    different = [v.path for v, *d in zip(variables, *ranks, strict=True) if len(set(d)) > 1]
    assert not different, f"{what} differ: {different}"


def assert_different(variables, what="weights"):
    for variable, *digests in zip(variables, *everyones(variables), strict=True):
        assert len(set(digests)) == hvd.size(), f"{what}: {variable.path} is the same on some ranks"


def data(samples=24):
    """Inputs and targets of this rank's own."""
    random = np.random.default_rng(100 + hvd.rank())
    return random.normal(size=(samples, 6)).astype("float32"), random.normal(size=(samples, 1)).astype(
        "float32"
    )


def network(optimizer=None, dropout=False, width=8, traced=False, **options):
    """A model that starts elsewhere on each rank; its steps are traced where that matters: it takes long."""
    keras.utils.set_random_seed(10 + hvd.rank())
    layers = [keras.layers.Dense(width, activation="tanh", name="first")]
    layers += [keras.layers.Dropout(0.5, name="drop")] if dropout else []
    layers += [keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(1, name="last")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9) if optimizer is None else optimizer
    model.compile(optimizer, "mse", jit_compile=False, run_eagerly=not traced, **options)
    return model


def line(optimizer, traced=False):
    """A small model, for what depends on the optimizer alone."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer, "mse", jit_compile=False, run_eagerly=not traced)
    return model


def fit(model, *calls, samples=24, **options):
    """``fit`` with batches of 4."""
    x, y = data(samples)
    return model.fit(x, y, batch_size=4, callbacks=list(calls), verbose=0, shuffle=False, **options)


def at(**hooks):
    """A callback made of functions."""

    class Hooks(keras.callbacks.Callback):
        pass

    for name, function in hooks.items():
        setattr(Hooks, name, staticmethod(function))
    return Hooks()


def recorder(rates):
    return at(on_train_batch_begin=lambda batch, logs=None: rates.append(rates.read()))


class Rates(list):
    """The learning rates of all batches."""

    def __init__(self, model):
        super().__init__()
        self.read = lambda: float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
