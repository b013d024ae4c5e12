"""Elastic training of Keras 3 models: Horovod's state, callbacks and loop, on TensorFlow and torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError

from hvd_gradflow.errors import ConfigError
from hvd_gradflow.keras.bridge import bridge

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(ObjectState):
    """A model and its optimizer, with properties of one's own, kept in memory and equal on all ranks.

    Parameters
    ----------
    model : keras.Model
        Must be built. Its optimizer is built here, so that a new rank has the same variables as the others.
    optimizer : keras.optimizers.Optimizer, optional
        By default the one that the model was compiled with.
    **kwargs
        Properties to keep, attributes of the state (``batch=0, epoch=0``).

    Raises
    ------
    ConfigError
        For a model that is not built, or without an optimizer.

    Notes
    -----
    The states of random generators (dropout) are saved and restored, and not synchronised: each rank draws on
    its own.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ConfigError("the model must be built first: call model.build(input_shape)")
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if optimizer is None:
            raise ConfigError("the state needs an optimizer: compile the model, or pass optimizer=...")
        if not getattr(optimizer, "built", True):
            optimizer.build(model.trainable_variables)
        self.model = model
        self.optimizer = optimizer
        self._save_variables()
        hvd = bridge().hvd
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **kwargs)

    def save(self) -> None:
        """Copy all variables and properties to host memory."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved last."""
        for variable, value in zip(self._variables(), self._saved_variables):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Take over everything from rank 0, and save it; collective."""
        bridge().broadcast([*self.model.weights, *_variables(self.optimizer)], 0)
        self._save_variables()
        super().sync()

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *_variables(self.optimizer)]

    def _save_variables(self) -> None:
        # np.array copies: on the CPU a backend may hand out its own memory.
        self._saved_variables = [np.array(keras.ops.convert_to_numpy(v)) for v in self._variables()]


class CommitStateCallback(keras.callbacks.Callback):
    """Commit the state after every so many batches, and after each epoch.

    Parameters
    ----------
    state : horovod.common.elastic.State
    batches_per_commit : int
        A commit copies all variables; fewer commits are faster, and lose more when a rank is lost.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from here, on all ranks."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, when it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keep the number of the last batch in ``state.batch``, and 0 after each epoch.

    Keras 3 fixes the number of batches before callbacks run, so this cannot shorten the first epoch after a
    reset by the batches that were done, as Horovod's does with older versions: pass
    ``steps_per_epoch=steps - state.batch`` to a ``fit`` of one epoch for that.

    Parameters
    ----------
    state : horovod.common.elastic.State
        With a property ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Start from 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keep the number of finished epochs in ``state.epoch``, over all calls of ``fit``.

    Parameters
    ----------
    state : horovod.common.elastic.State
        With a property ``epoch``; pass ``epochs=total - state.epoch`` to ``fit``, which counts from 0.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Note how many epochs are behind us."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count one more."""
        self.state.epoch = self.initial_epoch + epoch + 1


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``func(state, ...)``: it is called again, with the state restored, when ranks come and go.

    Do nothing collective before the decorated function is called: new ranks would do it while the others
    synchronise their state.

    Notes
    -----
    Elastic jobs run on Gloo, which carries Horovod's own compressors only.
    """
    return elastic(func, lambda: bridge().session)


def elastic(func: Callable[..., Any], session: Callable[[], Any]) -> Callable[..., Any]:
    """Return `func` as :func:`run` does, for the session of one framework."""

    @functools.wraps(func)
    def guarded(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            if _lost_a_rank(error):
                raise HorovodInternalError(error) from error
            raise

    def reset() -> None:
        session().shutdown()
        session().init()

    return run_fn(guarded, reset)


def _lost_a_rank(error: Exception) -> bool:
    """Whether TensorFlow tells of an exchange that failed, by its error for the unknown."""
    kind = type(error)
    by_tensorflow = kind.__name__ == "UnknownError" and kind.__module__.startswith("tensorflow.")
    return by_tensorflow and "Horovod" in str(error)


def _variables(optimizer: Any) -> list[Any]:
    found = optimizer.variables  # a method in Keras 2
    return list(found() if callable(found) else found)
