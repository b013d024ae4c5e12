"""Training by ``model.fit``, and the tests after it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from .keras_backend import keras
from .keras_exchange import KerasExchange
from .plan import Progress, schedule, steps_of
from .samples import Data, batches, endless, share


class Steps(keras.callbacks.Callback):
    """Sets the learning rate of each step, shows the progress, and ends the training after `total` steps."""

    def __init__(self, total: int, options: argparse.Namespace, progress: Progress) -> None:
        super().__init__()
        self._total, self._each, self._progress = total, options.backward_passes, progress
        self._batches = 0

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._peak = float(self.model.optimizer.learning_rate)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        rate = self._peak * schedule(self._batches // self._each, self._total)
        self.model.optimizer.learning_rate = rate

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._batches += 1
        done, rest = divmod(self._batches, self._each)
        if rest == 0:
            self._progress.step(done, f"loss {(logs or {}).get('loss', float('nan')):.3f}")
        if done == self._total:
            self.model.stop_training = True

    def on_train_end(self, logs: dict | None = None) -> None:
        self._progress.end()


class SameWeights(keras.callbacks.Callback):
    """Ends the job, naming the epoch, as soon as the ranks' weights are not bit for bit the same."""

    def __init__(self, exchange: KerasExchange) -> None:
        super().__init__()
        self._exchange = exchange

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._exchange.require_same_weights(self.model, epoch + 1)


def optimizer_for(name: str, lr: float, size: int) -> keras.optimizers.Optimizer:
    """SGD with a rate scaled by the number of ranks (Goyal et al. 2017, section 2.1), or AdamW with `lr`."""
    if name == "adamw":
        return keras.optimizers.AdamW(lr, weight_decay=0.01)
    return keras.optimizers.SGD(lr * size, momentum=0.9, weight_decay=1e-4)


def loss_for(data: Data) -> keras.losses.Loss:
    """Mean cross entropy of labels, mean squared error of ratings."""
    if np.issubdtype(data.train_y.dtype, np.integer):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.MeanSquaredError()


def train(model: keras.Model, data: Data, exchange: KerasExchange, options: argparse.Namespace) -> int:
    """Train on this rank's shards; return the number of optimizer steps, the same on all ranks."""
    a_pass, total = steps_of(len(data.train_y), exchange.size, options)
    exchange.broadcast(model)
    optimizer = exchange.optimizer(optimizer_for(options.optimizer, options.lr, exchange.size))
    # XLA cannot reach other processes from within what it compiles.
    model.compile(optimizer, loss_for(data), jit_compile=False)
    model.fit(
        _batches(data, exchange, options, a_pass),
        epochs=-(-total // a_pass),
        steps_per_epoch=a_pass * options.backward_passes,
        shuffle=False,  # batches() does
        verbose=0,
        callbacks=[Steps(total, options, Progress(exchange.rank == 0, total)), SameWeights(exchange)],
    )
    return total


def _batches(
    data: Data, exchange: KerasExchange, options: argparse.Namespace, a_pass: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """This rank's batches, without end."""
    found = endless(
        lambda epoch: batches(
            len(data.train_y), exchange.rank, exchange.size, options.batch_size, options.seed, epoch
        ),
        a_pass * options.backward_passes,
    )
    return ((data.train_x[i], data.train_y[i]) for i in found)


def trainable_elements(model: keras.Model) -> int:
    """How many numbers are trained."""
    return sum(int(np.prod(v.shape)) for v in model.trainable_weights)


def accuracy(model: keras.Model, data: Data, exchange: KerasExchange) -> float:
    """Part of all test images that are classified rightly; each rank looks at its share."""
    said, right = _tested(model, data, exchange)
    found = float((said.argmax(-1) == right).sum())
    return exchange.mean(found, "accuracy.right") * exchange.size / len(data.test_y)


def validation_rmse(model: keras.Model, data: Data, exchange: KerasExchange) -> float:
    """Root of the mean squared error of all test ratings; each rank looks at its share."""
    said, right = _tested(model, data, exchange)
    total = float(np.square(said.reshape(-1).astype(np.float64) - right).sum())
    return (exchange.mean(total, "validation_rmse.total") * exchange.size / len(data.test_y)) ** 0.5


def _tested(model: keras.Model, data: Data, exchange: KerasExchange) -> tuple[np.ndarray, np.ndarray]:
    """What the model says of this rank's share of the test samples, and what is right."""
    mine = share(np.arange(len(data.test_y)), exchange.rank, exchange.size, equal=False)
    return model.predict(data.test_x[mine], batch_size=500, verbose=0), data.test_y[mine]


MEASURES = {"accuracy": accuracy, "validation_rmse": validation_rmse}  # by the key of metrics.METRICS
