"""Horovod's schedules of the learning rate, for Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from hvd_gradflow.errors import ConfigError
from hvd_gradflow.keras.bridge import bridge

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback"]


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate to `initial_lr` times `multiplier` in some epochs.

    Momentum correction (https://arxiv.org/abs/1706.02677): ``SGD`` and ``RMSprop`` keep a sum of past steps,
    each with the learning rate of its time; when the rate changes, that sum must change with it. Horovod
    raises ``momentum`` for one batch. In Keras 3 ``momentum`` is a plain number, which a compiled step keeps
    as it was when the step was traced; so here the optimizer's sums themselves are multiplied by new over old
    rate. Without Nesterov's variant the steps are those of Horovod's rule.

    Parameters
    ----------
    initial_lr : float
        Learning rate at the start of training.
    multiplier : float or callable
        ``f(epoch)``; a number decays exponentially, as ``multiplier ** (epoch - start_epoch)``.
    start_epoch, end_epoch : int
        Epochs, from 0, with `end_epoch` excluded, in which the rate is set. Without `end_epoch`, to the end.
    staircase : bool
        Whether the rate is set once an epoch, or else with every batch: `multiplier` is then called with
        ``epoch + batch / steps_per_epoch``.
    momentum_correction : bool
        As above; optimizers other than ``SGD`` and ``RMSprop`` need none.
    steps_per_epoch : int, optional
        Number of batches in an epoch; by default as ``fit`` tells. Needed without `staircase` when ``fit``
        gets a generator.

    Raises
    ------
    ConfigError
        Without `initial_lr`; when training starts, for an optimizer with a schedule of its own, or when the
        number of batches is needed and not known.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ConfigError(f"{type(self).__name__} needs initial_lr, the rate at the start of training")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda e: multiplier ** (e - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how many batches an epoch has."""
        # The attribute itself: the property tells a number also where a schedule makes it.
        kept = getattr(_innermost(self.model.optimizer), "_learning_rate", None)
        if kept is not None and not isinstance(kept, keras.Variable):
            raise ConfigError(
                f"{type(self).__name__} sets the learning rate, and the optimizer was given a schedule of its"
                " own: give it a number, or leave out this callback"
            )
        if not self.staircase:
            self._steps()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take note of the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate, where it is due."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(epoch + batch / self._steps())
        elif batch == 0:
            self._set(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the learning rate as ``lr``."""
        if logs is not None:
            logs["lr"] = _learning_rate(self.model.optimizer)

    def _steps(self) -> int:
        self.steps_per_epoch = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise ConfigError(
                "the number of batches in an epoch is not known: pass steps_per_epoch to"
                f" {type(self).__name__}() or to fit()"
            )
        return self.steps_per_epoch

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = _learning_rate(optimizer)
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        new = _learning_rate(optimizer)
        if self.momentum_correction and old and new != old:
            for velocity in _velocities(_innermost(optimizer)):
                velocity.assign(keras.ops.multiply(velocity, new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from ``initial_lr / size`` to `initial_lr` over the first epochs.

    After batch ``b`` (from 1) of all batches, with ``e = b / steps_per_epoch``, the rate is
    ``initial_lr / size * (e * (size - 1) / warmup_epochs + 1)``: https://arxiv.org/abs/1706.02677.

    Parameters
    ----------
    initial_lr : float
        The rate to be reached, that of the optimizer.
    warmup_epochs : float
        Length of the warmup.
    momentum_correction, steps_per_epoch
        As in :class:`LearningRateScheduleCallback`.
    verbose : int
        Whether rank 0 prints a line at the end of the warmup.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = bridge().hvd.size()
            passed = epoch + 1.0 / self._steps()  # a round number when an epoch ends
            return 1.0 / size * (passed * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )  # fmt: skip
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the learning rate as ``lr``, and print it when the warmup ends."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch == self.warmup_epochs - 1 and bridge().hvd.rank() == 0:
            rate = _learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer within those that scale the loss."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _learning_rate(optimizer: Any) -> float:
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def _velocities(optimizer: Any) -> Sequence[Any]:
    """Return the sums of past steps that an optimizer keeps with the learning rate in them."""
    if isinstance(optimizer, keras.optimizers.SGD):
        found: Iterable[Any] = getattr(optimizer, "momentums", ())
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        found = getattr(optimizer, "_momentums", ())
    else:
        found = ()
    return [v for v in found if v is not None]
