"""``DistributedOptimizer`` for Keras 2 (the package ``tf-keras``), on TensorFlow."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.keras.reduction import Reduction, Settings


def takes(optimizer: Any) -> bool:
    """Return whether this is an optimizer of tf-keras."""
    keras = sys.modules.get("tf_keras")
    return keras is not None and isinstance(
        optimizer, (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)
    )


def wrapped(optimizer: Any, name: str | None, settings: Settings, passes: int) -> Any:
    """Return a distributed optimizer of the class and the settings of `optimizer`, without its state."""
    if passes > 1:
        raise UnsupportedError(
            "backward_passes_per_step with tf-keras: use Keras 3, which accumulates gradients"
        )
    if getattr(optimizer, "_built", False) or (hasattr(optimizer, "weights") and optimizer.weights):
        raise UnsupportedError(
            "an optimizer of tf-keras that has taken steps: wrap it before, its state is not taken over"
        )
    if _scales_loss(optimizer):
        raise UnsupportedError(f"{_LOSS_SCALE}, and Keras 3 for mixed_float16")
    cls: Any = type(
        type(optimizer).__name__,
        (_Distributed, type(optimizer)),
        {"__module__": type(optimizer).__module__, "_gradflow_settings": settings},
    )
    config = optimizer.get_config()
    return cls.from_config({**config, "name": name} if name is not None else config)


_LOSS_SCALE = (
    "tf-keras' LossScaleOptimizer decides for its rank alone whether to skip a step, and the others would"
    " wait: use hvd.DistributedOptimizer without one"
)


def _scales_loss(optimizer: Any) -> bool:
    return "LossScale" in type(optimizer).__name__


_Optimizer: Any = object  # whatever class the optimizer is of stands in its place


class _Distributed(_Optimizer):
    _gradflow_settings: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "gradflow", Reduction(self._gradflow_settings, self))

    def register_local_var(self, var: Any) -> None:
        """Leave the gradients of a variable on their rank, divided by the number of ranks."""
        self.gradflow.register_local(var)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name in ("apply_gradients", "_apply_gradients") and _scales_loss(
                frame.f_locals.get("self")
            ):
                raise UnsupportedError(f"{_LOSS_SCALE}, and Keras 3 for mixed_float16")
            frame = frame.f_back
        pairs = list(grads_and_vars)
        self.gradflow.variables = [v for _, v in pairs]
        reduced = self.gradflow.reduce(self, [g for g, _ in pairs])
        return super().apply_gradients(
            list(zip(reduced, self.gradflow.variables, strict=True)), *args, **kwargs
        )
