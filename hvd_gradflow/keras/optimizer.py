"""``DistributedOptimizer`` for Keras 3: an optimizer whose gradients are reduced over the ranks.

Keras' optimizers clip gradients at one place, after they were accumulated and before they are used. That is
where they are reduced, so accumulation, clipping and weight decay mean what they mean on one device.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.frontend.importance import importance_of
from hvd_gradflow.frontend.layers import layers
from hvd_gradflow.keras import loss_scale
from hvd_gradflow.keras.reduction import Reduction, Settings
from hvd_gradflow.tensorflow.choice import Compression

_HOOKS = (
    "apply",
    "_backend_apply_gradients",
    "_clip_gradients",
    "_overwrite_variables_directly_with_gradients",
)


_Optimizer: Any = object  # whatever class the optimizer is of stands in its place


class Distributed(_Optimizer):
    """What :func:`DistributedOptimizer` puts before the class of the optimizer."""

    _gradflow_settings: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # from_config() comes here
        _reduce(self)

    def register_local_var(self, var: Any) -> None:
        """Leave the gradients of a variable on their rank, divided by the number of ranks."""
        self.gradflow.register_local(var)

    def residual_state(self) -> dict[str, Any]:
        """Return the error-feedback residuals by variable name (float32), to be saved with a checkpoint.

        Collective over the process set: every rank must call it, and gets the same. Not part of what Keras
        saves, which many programs save on one rank only.
        """
        exchange = self.gradflow.exchange
        return {} if exchange is None else exchange.residual_state()

    def load_residual_state(self, state: Any) -> None:
        """Put back what :meth:`residual_state` returned, on all ranks; their number may be another."""
        if self.gradflow.exchange is not None:
            self.gradflow.exchange.load_residual_state(state)

    def build(self, variables: Any) -> Any:
        loss_scale.agree(self, sys._getframe(1))
        return super().build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        loss_scale.require_agreement(self, sys._getframe(1))
        self.gradflow.done = False
        result = super().apply(grads, trainable_variables)
        if self.gradflow.done or not self._takes_a_step():
            return result
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        if any(
            g is not None and not self._overwrite_variable_with_gradient(v)
            for g, v in zip(grads, variables, strict=False)
        ):
            raise UnsupportedError(
                f"the optimizer {type(self).__name__} has used gradients without clipping them as"
                " keras.optimizers.Optimizer does, so they were not reduced over the ranks: reduce them"
                " with hvd.DistributedGradientTape instead, and leave the optimizer as it is"
            )
        return result

    def _takes_a_step(self) -> bool:
        """Whether gradients had to be reduced: while a graph is traced always, else not between steps."""
        passes = self.gradient_accumulation_steps
        return not passes or self.gradflow.tracing() or int(self._iterations) % passes == 0

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        self.gradflow.variables = list(trainable_variables)
        return super()._backend_apply_gradients(grads, trainable_variables)

    def _overwrite_variables_directly_with_gradients(self, grads: Any, vars: Any) -> Any:
        grads = self.gradflow.overwritten(self, grads, vars)
        return super()._overwrite_variables_directly_with_gradients(grads, vars)

    def _clip_gradients(self, grads: Any) -> Any:
        grads = self.gradflow.reduce(self, grads)
        if self._gradflow_settings.sums_passes:
            grads = [None if g is None else g * self.gradient_accumulation_steps for g in grads]
        return super()._clip_gradients(grads)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    *,
    max_staleness: int = 0,
) -> Any:
    """Wrap a Keras optimizer so that its gradients are reduced over the ranks before it uses them.

    As ``horovod.tensorflow.keras.DistributedOptimizer``, for Keras 3 on TensorFlow or torch. The optimizer
    itself becomes a distributed one, with the state and the name it has, and is returned; what Keras saves
    of it can be loaded without this package. In addition it has ``residual_state()`` and
    ``load_residual_state(state)``, the error-feedback residuals for checkpoints.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        Also a LossScaleOptimizer. Under the policy ``mixed_float16`` ``model.compile`` makes one around this
        optimizer; then all ranks skip a step together when the gradients of one are not finite.
    name : str, optional
        Name of the optimizer; by default as before.
    device_dense, device_sparse, num_groups, groups
        Without effect: gradients travel by the host, in buckets.
    compression : Choice, or one of Horovod's own compressors
        ``hvd.Compression.adaptive``, ``hvd.Compression.int8(block=512)``, ...
    sparse_as_dense : bool
        Whether ``tf.IndexedSlices`` are reduced as dense gradients.
    gradient_predivide_factor, op, process_set, scale_local_gradients
        As in Horovod.
    backward_passes_per_step : int
        Backward passes whose gradients are added up before they are reduced and applied; by Keras'
        ``gradient_accumulation_steps``.
    average_aggregated_gradients : bool
        Whether they are averaged over the passes, as Keras does by itself, rather than summed.
    max_staleness : int
        The optimizer applies the reduced gradients of so many steps ago, while those of the steps since
        travel: on a slow network a step takes the longer of computing and communicating, not both. The same
        on all ranks; buffers for gradients take `max_staleness` + 1 times the memory. In the first
        `max_staleness` steps it applies zeros: `iterations`, learning-rate schedules, Adam's bias correction
        and decoupled weight decay go on, momentum stays zero. The gradients of the last steps are not
        applied. Not with a LossScaleOptimizer (``mixed_float16``), nor with sparse gradients.

    Raises
    ------
    UnsupportedError
        For a compression that this job cannot carry, or an optimizer of another kind.
    ConfigError
        For arguments that contradict each other.
    """
    import keras

    passes = backward_passes_per_step
    if passes < 1:
        raise ConfigError(f"backward_passes_per_step={passes}: expected at least 1")
    if hasattr(optimizer, "gradflow"):
        raise ConfigError(
            "this optimizer is distributed already: wrap it once, and compile the model with that"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        from hvd_gradflow.keras import legacy

        if not legacy.takes(optimizer):
            raise ConfigError(
                f"expected a Keras optimizer, such as keras.optimizers.SGD(0.1), got {optimizer!r}"
            )
        wrap: Any = legacy.wrapped
    else:
        wrap = _wrapped
    settings = Settings.of(
        compression,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        scale_local_gradients,
        importance_of(optimizer),
        sums_passes=passes > 1 and not average_aggregated_gradients,
        max_staleness=max_staleness,
    )
    return wrap(optimizer, name, settings, passes)


def _wrapped(optimizer: Any, name: str | None, settings: Settings, passes: int) -> Any:
    import keras

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        loss_scale.refuse_staleness(settings)
        loss_scale.ask_all(optimizer, _wrapped(optimizer.inner_optimizer, name, settings, passes))
        return optimizer
    missing = [hook for hook in _HOOKS if not hasattr(optimizer, hook)]
    if missing:
        raise UnsupportedError(
            f"the optimizers of Keras {keras.__version__} have no {', '.join(missing)}, by which gradients"
            " are reduced: use a version that the README names, or hvd.DistributedGradientTape"
        )
    if passes > 1:
        _accumulate(optimizer, passes)
    if name is not None:
        optimizer.name = name
    # The object itself, since not all of its state and settings are in its configuration.
    optimizer.__class__ = distributed_class(type(optimizer), settings)
    _reduce(optimizer)
    return optimizer


def _reduce(optimizer: Any) -> None:
    """Give a distributed optimizer its reduction; its streams end with it."""
    reduction = Reduction(optimizer._gradflow_settings, optimizer)
    # Not by Keras' own __setattr__, which would track it as a part of the optimizer's state.
    object.__setattr__(optimizer, "gradflow", reduction)
    if reduction.exchange is not None:
        weakref.finalize(optimizer, reduction.exchange.close).atexit = False


def _accumulate(optimizer: Any, passes: int) -> None:
    if optimizer.gradient_accumulation_steps:
        raise ConfigError(
            "backward_passes_per_step and the optimizer's gradient_accumulation_steps mean the same: give one"
        )
    optimizer.gradient_accumulation_steps = passes
    if optimizer.built:
        optimizer._accumulated_gradients = [
            optimizer.add_variable_from_reference(v, name="gradient_accumulator")
            for v in optimizer._trainable_variables
        ]


def distributed_class(base: type, settings: Settings) -> type:
    """Return the class of distributed optimizers of class `base`, under its name.

    Keras saves the name and the module of an optimizer's class, and finds the plain one by them.
    """
    import keras

    public = getattr(keras.optimizers, base.__name__, None)
    known = public is not None and issubclass(base, public)  # on torch each has a subclass of its own
    body = {
        "__module__": "keras.optimizers" if known else base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_gradflow_settings": settings,
    }
    made = type(base.__name__, (Distributed, base), body)
    registered = keras.saving.get_registered_name(base)
    if registered != base.__name__:
        # As register_keras_serializable() does, but for the name alone: it is to lead to the plain class.
        from keras.src.saving import object_registration

        object_registration.GLOBAL_CUSTOM_NAMES[made] = registered
    return made


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int | None = None,
    groups: Any = None,
    process_set: Any = None,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    max_staleness: int = 0,
) -> Any:
    """Wrap an optimizer as :func:`DistributedOptimizer`, but leave gradients of some layers on their rank.

    Parameters
    ----------
    local_layers : keras.layers.Layer, or a collection of them, optional
        Layers that each rank trains for itself; they must be built.
    optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op
        As of :func:`DistributedOptimizer`.
    backward_passes_per_step, average_aggregated_gradients, groups, process_set, scale_local_gradients
        As of :func:`DistributedOptimizer`.
    max_staleness
        As of :func:`DistributedOptimizer`.
    """
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients,
        groups=groups, process_set=process_set, scale_local_gradients=scale_local_gradients,
        max_staleness=max_staleness,
    )  # fmt: skip
    for layer in layers(local_layers):
        for variable in layer.trainable_variables:
            made.register_local_var(variable)
    return made
