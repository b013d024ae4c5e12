"""What error feedback owes in all of a reducer, as one state to save and to continue with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.errors import GradflowError

if TYPE_CHECKING:
    from hvd_gradflow.reduce.reducer import Reducer


def state_of(reducer: Reducer) -> dict[str, np.ndarray]:
    """Return what is owed, by name; collective. The text is that of :meth:`Reducer.residual_state`."""
    _require_idle(reducer)
    residuals = reducer.residuals
    residuals.in_gradient_units(reducer.normalizer)
    state = residuals.total(reducer, residuals.sizes_everywhere(reducer))
    for scope, stream in sorted(reducer.streams.items()):
        state.update({f"{scope}/{name}": value for name, value in stream.residual_state().items()})
    return state


def load(reducer: Reducer, state: dict[str, Any]) -> None:
    """Continue with a state of :func:`state_of`; collective, the same one on all ranks."""
    _require_idle(reducer)
    for scope, stream in sorted(reducer.streams.items()):
        prefix = f"{scope}/"
        stream.load_residual_state(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )
    prefixes = tuple(f"{scope}/" for scope in reducer.streams)
    rest = {name: value for name, value in state.items() if not name.startswith(prefixes)}
    reducer.residuals.replace(rest, reducer.rank)


def _require_idle(reducer: Reducer) -> None:
    busy = reducer.submissions.busy(reducer.residuals.sizes())
    if busy:
        raise GradflowError(f"residuals while tensor {busy[0]!r} is under way: wait for it first")
