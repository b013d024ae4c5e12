"""Callbacks for ``model.fit`` on several ranks: Horovod's, for Keras 3 on TensorFlow and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hvd_gradflow import events
from hvd_gradflow.errors import ConfigError, MismatchError
from hvd_gradflow.keras.bridge import bridge
from hvd_gradflow.keras.guard import ReportLossCallback
from hvd_gradflow.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = ["BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "GradientAnalysisCallback",
           "LearningRateScheduleCallback", "LearningRateWarmupCallback", "MetricAverageCallback",
           "ReportLossCallback"]  # fmt: skip


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Make all ranks start from one rank's weights and optimizer state.

    Horovod broadcasts after the first batch, when the variables of every optimizer exist. Here what exists on
    all ranks is broadcast before the first batch already, after all callbacks' ``on_train_begin`` (one may
    have restored a checkpoint), so that the first gradients are those of equal weights. If that was not all
    (on TensorFlow, an optimizer gets its variables in its first step), everything is broadcast after the
    first batch.

    The states of random generators (dropout, augmentation) are not broadcast: each rank draws on its own.

    Parameters
    ----------
    root_rank : int
        The rank that sends.
    device : str
        Accepted as in Horovod; variables are received where they are.
    local_variables : variable, or iterable of variables, optional
        Variables of this rank's own (Keras', or those of the backend). They are not broadcast, nor is what
        the optimizer keeps for them.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._looked = False  # whether the optimizers are distributed
        self._local: dict[int, Any] = {}
        if local_variables is not None:
            for variable in [local_variables] if _is_variable(local_variables) else local_variables:
                self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leave a variable out of the broadcast.

        Raises
        ------
        ConfigError
            If `var` is no variable.
        """
        if not _is_variable(var):
            raise ConfigError(f"local_variables: {var!r} is no variable; pass layer.variables, for example")
        self._local[id(_inner(var))] = var

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Broadcast what exists on every rank, before the first batch."""
        if not self.broadcast_done:
            self.broadcast_done = self._share()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast all, after the first batch, unless that is done."""
        if not self.broadcast_done:
            self.broadcast_done = self._share(last=True)

    def _share(self, last: bool = False) -> bool:
        """Broadcast the weights and the optimizer's variables, each if all ranks have them; True if both."""
        model, optimizer = self.model, self.model.optimizer
        weights = [v for v in model.weights if id(_inner(v)) not in self._local]
        state = self._shared_state(optimizer)
        groups = {
            "weights": weights if model.built or last else None,
            "variables of the optimizer": state if last or optimizer is None or optimizer.built else None,
        }
        mine = [None if g is None else [(tuple(v.shape), str(v.dtype)) for v in g] for g in groups.values()]
        found = bridge().hvd.allgather_object((_is_distributed(optimizer), mine), name="gradflow.broadcast")
        if last or not self._looked:
            self._looked = True
            _require_distributed([distributed for distributed, _ in found])
        ranks = [layouts for _, layouts in found]
        done = True
        for (what, group), layouts in zip(groups.items(), zip(*ranks)):
            if layouts[0] is not None and all(layout == layouts[0] for layout in layouts):
                if group:
                    bridge().broadcast(group, self.root_rank)
            elif last:
                raise MismatchError(_layouts_differ(what, layouts))
            else:
                done = False
        return done

    def _shared_state(self, optimizer: Any) -> list[Any]:
        # Keras ties an optimizer's variable to the weight it belongs to by nothing but its name.
        names = {_slot_prefix(v): id(_inner(v)) in self._local for v in self.model.trainable_weights}

        def is_local(variable: Any) -> bool:
            owners = [name for name in names if variable.name.startswith(name)]
            return bool(owners) and names[max(owners, key=len)]

        return [v for v in _variables(optimizer) if not (self._local and is_local(v))]


def _is_distributed(optimizer: Any) -> bool | None:
    if optimizer is None:
        return None
    return hasattr(optimizer, "gradflow") or hasattr(getattr(optimizer, "inner_optimizer", None), "gradflow")


def _require_distributed(ranks: list[bool | None]) -> None:
    """Raise MismatchError if only some ranks' optimizers are distributed; warn if none is."""
    with_one = [rank for rank, distributed in enumerate(ranks) if distributed]
    if with_one and len(with_one) < len(ranks):
        raise MismatchError(
            f"only ranks {with_one} of {len(ranks)} have an optimizer of hvd.DistributedOptimizer(...): the"
            " others would train by themselves; wrap it on every rank"
        )
    if not with_one and len(ranks) > 1 and any(d is False for d in ranks) and bridge().hvd.rank() == 0:
        events.warn(
            "the model's optimizer is not distributed, so the ranks' weights will differ, unless the training"
            " step reduces its gradients itself: compile with hvd.DistributedOptimizer(optimizer)"
        )


class MetricAverageCallback(keras.callbacks.Callback):
    """Average the metrics over the ranks at the end of each epoch, for the callbacks that follow it.

    List it before those that read metrics (``ReduceLROnPlateau``, ``EarlyStopping``, ``ModelCheckpoint``,
    ``TensorBoard``). Values that are no numbers are left as they are.

    Parameters
    ----------
    device : str
        Accepted as in Horovod; the values are numbers in Python, averaged on the host.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average `logs` in place.

        Raises
        ------
        MismatchError
            On every rank, if the ranks do not have the same metrics.
        """
        logs = {} if logs is None else logs
        names = sorted(name for name, value in logs.items() if _is_number(value))
        ranks = bridge().hvd.allgather_object(names, name="gradflow.metrics")
        if any(other != ranks[0] for other in ranks):
            raise MismatchError(_metrics_differ(ranks))
        logs.update(zip(names, bridge().mean([float(logs[name]) for name in names])))


class GradientAnalysisCallback(keras.callbacks.Callback):
    """Record statistics of the gradients while ``fit`` runs, for ``gradflow analyze`` (docs/analyze.md).

    Give it to every rank, for the noise scale; rank 0 by itself records all the rest.

    Parameters
    ----------
    path : str
        A directory; made if it is missing. One that cannot be written is a warning.
    every : int
        Steps from one sample to the next.

    Raises
    ------
    ConfigError
        For less than one step.
    """

    def __init__(self, path: str, every: int = 25) -> None:
        super().__init__()
        if every < 1:
            raise ConfigError(f"every={every!r}: expected at least 1 step")
        self.path, self.every = str(path), int(every)

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to record."""
        bridge().session.record(self.path, self.every)

    def on_train_end(self, logs: Any = None) -> None:
        """Record no more."""
        bridge().session.end_recording()


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keep the best model; the file is named later, as ``callback.filepath``, or with `filepath`.

    Ranks that share a folder must not write one file: give it to rank 0 only, after
    :class:`MetricAverageCallback` on all.

    Parameters
    ----------
    monitor, verbose, save_weights_only, mode, save_freq
        As in ``keras.callbacks.ModelCheckpoint``.
    filepath : path, optional
        Ends with ``.keras``, or with ``.weights.h5`` if `save_weights_only`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
    ) -> None:
        place = filepath or ("unset.weights.h5" if save_weights_only else "unset.keras")
        super().__init__(place, monitor, verbose, True, save_weights_only, mode, save_freq)
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise ConfigError if there is no file to write to."""
        if not self.filepath:
            raise ConfigError("BestModelCheckpoint has no file: set its attribute filepath before fit()")


def _inner(variable: Any) -> Any:
    """Return what the backend has for a variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable) or type(value).__name__.endswith(("Variable", "Parameter"))


def _slot_prefix(variable: Any) -> str:
    path = getattr(variable, "path", variable.name)
    return path.replace("/", "_") + "_"


def _variables(optimizer: Any) -> list[Any]:
    return [] if optimizer is None else list(optimizer.variables)


def _is_number(value: Any) -> bool:
    if isinstance(value, (str, bytes, bool)) or len(getattr(value, "shape", ())):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _metrics_differ(ranks: Sequence[Sequence[str]]) -> str:
    every = sorted({name for names in ranks for name in names})
    holders = {name: [r for r, names in enumerate(ranks) if name in names] for name in every}
    where = [f"{name!r} only on ranks {has}" for name, has in holders.items() if len(has) < len(ranks)]
    return (
        f"MetricAverageCallback: the ranks' metrics differ: {'; '.join(where)}. Compile the same metrics and"
        " pass validation data on every rank"
    )


def _layouts_differ(what: str, layouts: Sequence[Any]) -> str:
    other = next(r for r, layout in enumerate(layouts) if layout != layouts[0])
    pairs = zip(layouts[0], layouts[other])
    at = next((f": number {i} is {a} and {b}" for i, (a, b) in enumerate(pairs) if a != b), "")
    return (
        f"BroadcastGlobalVariablesCallback: rank 0 has {len(layouts[0])} {what}, rank {other} has"
        f" {len(layouts[other])}{at}. Build the same model on every rank, or register what is a rank's own by"
        " local_variables"
    )
