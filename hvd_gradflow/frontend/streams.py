"""The streams of one tape or optimizer: one for each list of variables with dense gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from hvd_gradflow.errors import GradflowError
from hvd_gradflow.frontend.exchange import HostExchange
from hvd_gradflow.frontend.session import Session
from hvd_gradflow.reduce import TensorSpec


class Streams:
    """Opens a stream when the first step with its gradients runs; ranks whose lists differ are told so.

    Parameters
    ----------
    session : Session
        Horovod.
    choice : Choice
        How gradients travel.
    process_set : ProcessSet
        Who takes part.
    average : bool
        Whether the result is the average or the sum.
    predivide : float
        Horovod's ``gradient_predivide_factor``.
    importance : {"energy", "coordinate"}
        How the optimizer weighs errors.
    kind : str
        Names the streams, with a number.
    """

    def __init__(
        self,
        session: Session,
        choice: Any,
        process_set: Any,
        average: bool,
        predivide: float = 1.0,
        importance: str = "energy",
        kind: str = "tape",
    ) -> None:
        self.session, self.choice, self.process_set = session, choice, process_set
        self.average, self._predivide = average, predivide
        self._importance, self._kind = importance, kind
        self.sent_by_horovod: Counter[str] = Counter()
        self._hosts: dict[Hashable, HostExchange] = {}
        self._last: HostExchange | None = None  # the one that ran last
        self._loaded: dict[str, Any] = {}  # residuals that wait for their stream

    @property
    def alone(self) -> bool:
        """Whether this rank has nobody to exchange with."""
        return not self.process_set.included() or self.process_set.size() == 1

    @property
    def reducer(self) -> Any:
        """The reducer of the process set, or None before the first step."""
        return None if self._last is None else self._last.reducer

    @property
    def may_normalize(self) -> bool:
        """Whether second moments are of use."""
        return self.choice.may_normalize(self._importance)

    def host(self, key: Hashable, specs: Callable[[], Sequence[TensorSpec]]) -> HostExchange:
        """Return the exchange for the gradients that `key` stands for; `specs` describes new ones."""
        found = self._hosts.get(key)
        if found is None:
            found = self._hosts[key] = HostExchange(
                self.session,
                self.choice,
                specs(),
                self.process_set,
                self.average,
                self._predivide,
                self._importance,
                self._kind,
            )
            names = [spec.name for spec in found.specs]
            mine = {n: self._loaded.pop(n) for n in names if n in self._loaded}
            if self._loaded and not mine:
                raise GradflowError(
                    f"the residuals that were loaded are of {', '.join(sorted(self._loaded)[:3])}, ..., and"
                    f" the gradients of {', '.join(names[:3])}, ...: no name is in both"
                )
            found.load_residual_state(mine)
        return found

    def ran(self, host: HostExchange) -> None:
        """Note which stream a step has used."""
        self._last = host

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return the error-feedback residuals by name (float32, summed over the ranks); collective."""
        return dict(self._loaded) if self._last is None else self._last.residual_state()

    def load_residual_state(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`residual_state` gave, on all ranks; before the first step it waits."""
        if self._last is None:
            self._loaded = dict(state)
        else:
            self._last.load_residual_state(state)

    def close(self) -> None:
        """Let the reducer forget the streams."""
        for host in self._hosts.values():
            host.close()
