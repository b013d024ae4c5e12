"""What the programs with Keras 3 share: a network, data that differ between ranks, an oracle."""

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

import hvd_gradflow.keras as hvd
from hvd_gradflow.keras.bridge import bridge

if os.environ.get("GRADFLOW_DEVICE") == "emulated":
    import emulated_gpu  # noqa: F401

side = bridge()
TENSORFLOW = keras.config.backend() == "tensorflow"
Compression = hvd.Compression
SGD = keras.optimizers.SGD


def exchange(value):
    return side.hvd.allgather_object(value, name="exchange")


def data(n=64, rank=None):
    rng = np.random.default_rng(hvd.rank() if rank is None else rank)
    return rng.normal(size=(n, 20)).astype(np.float32), rng.integers(0, 3, n)


def network(seed=0):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((20,)), layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu"),
         layers.Dense(3)]
    )  # fmt: skip


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(optimizer, epochs=2, model=None, n=64, batch=16, **options):
    model = network() if model is None else model
    model.compile(optimizer, LOSS, **options)
    x, y = data(n)
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, shuffle=False)
    return model


def digest(model):
    raw = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    return hashlib.sha256(raw).hexdigest()


def same(model):
    everyone = exchange(digest(model))
    assert len(set(everyone)) == 1, everyone


def distance(a, b):
    flat = [np.concatenate([w.ravel() for w in m.get_weights()]) for m in (a, b)]
    return np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0] - start())


def start():
    return np.concatenate([w.ravel() for w in network().get_weights()])


def units():
    return hvd.wire_counters()["units"]


def after_every_step(model):
    """A callback: weights are equal on all ranks after every step."""
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: same(model))


def alone_on_all_data(optimizer, epochs=2, n=64, batch=16):
    """The same training on one device, with the batches of all ranks in one: the oracle, uncompressed."""
    parts = [data(n, r) for r in range(hvd.size())]
    x = np.concatenate([np.concatenate([p[0][i : i + batch] for p in parts]) for i in range(0, n, batch)])
    y = np.concatenate([np.concatenate([p[1][i : i + batch] for p in parts]) for i in range(0, n, batch)])
    model = network()
    model.compile(optimizer, LOSS)
    model.fit(x, y, batch_size=batch * hvd.size(), epochs=epochs, verbose=0, shuffle=False)
    return model


def main() -> None:
    hvd.init()
    run(hvd.rank(), lambda: exchange(0), sys.argv[1:], before=keras.utils.clear_session)
