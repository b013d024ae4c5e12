"""Loss scaling (``mixed_float16``) over several ranks.

Keras' LossScaleOptimizer looks whether the gradients of its own rank are finite, and calls the optimizer in
it only if they are; then one rank would wait for another that skips the step. So it asks all ranks.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.keras.bridge import bridge
from hvd_gradflow.keras.reduction import Settings


def agree(inner: Any, frame: FrameType | None) -> None:
    """Where a loss-scale optimizer around `inner` is among the callers, make it ask all ranks."""
    outer = _outer(inner, frame)
    if outer is not None:
        refuse_staleness(inner.gradflow.settings)
        ask_all(outer, inner)


def require_agreement(inner: Any, frame: FrameType | None) -> None:
    """Refuse a loss-scale optimizer around `inner` that decides by itself."""
    outer = _outer(inner, frame)
    if outer is not None and not hasattr(outer, "gradflow"):
        raise UnsupportedError(
            "a LossScaleOptimizer around hvd.DistributedOptimizer(...) decides for its rank alone whether to"
            " skip a step: write hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(...))"
        )


def refuse_staleness(settings: Settings) -> None:
    """Refuse a loss scale that may have changed since the gradients that are applied were made."""
    if settings.max_staleness:
        raise UnsupportedError(
            "max_staleness > 0 with a LossScaleOptimizer (the policy mixed_float16): it divides by its"
            " present scale, which may not be what these gradients were multiplied by, steps ago; use"
            " mixed_bfloat16, or max_staleness=0"
        )


def ask_all(outer: Any, inner: Any) -> None:
    """Make a loss-scale optimizer ask all ranks whether gradients are finite."""
    if hasattr(outer, "gradflow"):
        return
    finite_here, reduction = outer.check_finite, inner.gradflow
    side = bridge()
    names: list[str] = []

    def check_finite(grads: Any) -> Any:
        finite = finite_here(grads)
        if reduction.exchange is None:
            return side.all_finite_by_horovod(
                finite, reduction.settings.process_set, f"{reduction.name}.finite"
            )
        route = reduction.exchange.choice.route
        return side.all_finite(finite, reduction.settings.process_set, route, names)

    object.__setattr__(outer, "check_finite", check_finite)
    object.__setattr__(outer, "gradflow", reduction)
    for method in ("residual_state", "load_residual_state", "register_local_var"):
        object.__setattr__(outer, method, getattr(inner, method))


def _outer(inner: Any, frame: FrameType | None) -> Any:
    """Return the loss-scale optimizer around `inner` among the callers, if there is one."""
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name in _CALLERS else None
        if caller is not inner and getattr(caller, "inner_optimizer", None) is inner:
            return caller
        frame = frame.f_back
    return None


_CALLERS = ("build", "apply", "_stateful_handle_finite_grads", "_common_apply", "_tf_apply")
