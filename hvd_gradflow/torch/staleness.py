"""A distributed optimizer that applies the gradients of `max_staleness` steps ago.

What :mod:`.distributed` puts on Horovod's class in that case; docs/architecture.md, "Bounded staleness".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hvd_gradflow.errors import GradflowError, UnsupportedError

_NAMED = 5  # parameters in a message
_NEAR = (
    8  # frames between a GradScaler and the optimizer that it calls: wrappers of torch's and of schedulers
)


def synchronize(self: Any) -> None:
    """Hand over the gradients of this step, and put the reduced ones of `max_staleness` steps ago in place.

    In the first steps, when there are none yet, gradients become zero.
    """
    refuse_reduced(self)
    for group in [g for g in self._handles if isinstance(g, tuple)]:
        self._handles.update(zip(group, self._handles.pop(group)[0], strict=True))
    refuse_missing(self)
    for p in self._requires_update:
        if self._handles.get(p, (None, None))[0] is None:
            self._handles[p] = self._allreduce_grad_async(p)
    self.gradflow.agree()
    waits = {p: handle for p, (handle, _) in self._handles.items()}
    self._handles.clear()
    for p in waits:
        self._allreduce_delay[p] = self.backward_passes_per_step
    for group in self._group_counts:
        self._group_counts[group] = 0
    self.gradflow.end_step(waits)
    self._synchronized = True


def refuse_reduced(self: Any) -> None:
    """Refuse to reduce gradients once more.

    Raises
    ------
    GradflowError
        There was no backward pass since they were reduced.
    """
    if self._synchronized and not self._handles:
        raise GradflowError(
            "step() or synchronize() after synchronize(), without a backward pass in between, would reduce"
            " what is reduced already: write `with optimizer.skip_synchronize(): optimizer.step()`"
        )


def refuse_missing(self: Any) -> None:
    """Refuse gradients that were under way and are gone, on which Horovod fails with an AttributeError.

    Raises
    ------
    GradflowError
        Naming the parameters.
    """
    under_way = [p for p, (handle, _) in self._handles.items() if handle is not None]
    gone = [p for p in under_way if not isinstance(p, tuple) and p.grad is None]  # a tuple: Horovod's groups
    if gone:
        names = ", ".join(self._parameter_names[p] for p in gone[:_NAMED]) + ", ..." * (len(gone) > _NAMED)
        raise GradflowError(
            f"the gradient of {names} was set to None between backward() and step(), while it was being"
            " reduced: do so after optimizer.synchronize(), then step() within optimizer.skip_synchronize()"
        )


def state_dict_by(inherited: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method ``state_dict`` that warns of what it does not hold."""

    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.gradflow.warn_if_under_way("state_dict() was called")
        return inherited(self, *args, **kwargs)

    return state_dict


def step_by(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method ``step`` that ends in `apply`: Horovod's, of gradients that are reduced."""

    def step(self: Any, closure: Any = None) -> Any:
        if closure is not None:
            raise UnsupportedError(
                "step(closure) with max_staleness > 0: a closure is called for the gradients that this step"
                " is to apply; call backward() and then step()"
            )
        _refuse_scaler(sys._getframe(1))
        if self._should_synchronize:
            self.synchronize()
        if not self.gradflow.applies:
            self._synchronized = False
            return None
        return _apply(self, apply)

    return step


def drain_by(apply: Callable[..., Any]) -> Callable[..., int]:
    """Return the method ``drain`` that steps by `apply`, as :func:`step_by`."""

    def drain(self: Any, before_step: Callable[[], Any] | None = None) -> int:
        """Apply the reductions that are still under way, step by step; then nothing is.

        For the end of training, or before a test or a checkpoint that is to count every gradient. Every rank
        must call it. Afterwards the first `max_staleness` steps have nothing to apply again.

        Parameters
        ----------
        before_step : callable, optional
            Called before each inner step, with the reduced gradients in place: clips them, for example.

        Returns
        -------
        int
            How many steps were taken.
        """
        if self._handles:
            raise GradflowError("drain() between backward() and step(): take the step first")
        steps = 0
        while self.gradflow is not None and self.gradflow.due():
            if before_step is not None:
                before_step()
            _apply(self, apply)
            steps += 1
        return steps

    return drain


def _apply(self: Any, apply: Callable[..., Any]) -> Any:
    asked, self._should_synchronize = self._should_synchronize, False
    try:
        return apply(self)
    finally:
        self._should_synchronize = asked


def _refuse_scaler(frame: Any) -> None:
    """Refuse torch's GradScaler, if it is the caller."""
    for _ in range(_NEAR):
        if frame is None:
            return
        caller: Any = frame.f_locals.get("self") if frame.f_code.co_name.endswith("step") else None
        if any(c.__name__ == "GradScaler" for c in type(caller).__mro__) and caller.is_enabled():
            raise UnsupportedError(
                "a GradScaler with max_staleness > 0: it divides by its present scale, which may not be what"
                " these gradients were multiplied by, steps ago; use bfloat16 without a scaler, or"
                " max_staleness=0"
            )
        frame = frame.f_back
