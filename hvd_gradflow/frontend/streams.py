"""The streams of one tape or optimizer, in which its variables' dense gradients are reduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hvd_gradflow.errors import GradflowError
from hvd_gradflow.frontend.exchange import HostExchange, Terms
from hvd_gradflow.frontend.kinds import distinct
from hvd_gradflow.reduce import TensorSpec


class Streams:
    """Opens a stream when the first step with its gradients runs; ranks whose lists differ learn it.

    A variable that has its first gradient in a later step comes into another stream, with others like it.
    So each is in one stream for good, which keeps its residual, whatever is missing in a step. Variables are
    known by their id: they must live as long as this; an optimizer holds its own, a tape's end it.

    Parameters
    ----------
    terms : Terms
        How gradients are reduced.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.choice, self.process_set = terms.choice, terms.process_set
        self.sent_by_horovod: Counter[str] = Counter()
        self._hosts: list[HostExchange] = []
        self._host_of: dict[int, tuple[HostExchange, str]] = {}  # by id of a variable, and its name there
        self._loaded: dict[str, Any] = {}  # residuals that wait for their stream

    @property
    def alone(self) -> bool:
        """Whether this rank has nobody to exchange with."""
        return not self.process_set.included() or self.process_set.size() == 1

    @property
    def reducer(self) -> Any:
        """The reducer of the process set, or None before the first step."""
        return self._hosts[0].reducer if self._hosts and self._hosts[0].is_open else None

    @property
    def may_normalize(self) -> bool:
        """Whether second moments are of use."""
        return self.choice.may_normalize(self.terms.importance)

    def places(
        self, variables: Sequence[Any], names: Sequence[str], specs: Sequence[TensorSpec], at: Any = None
    ) -> list[tuple[HostExchange, str]]:
        """Return the exchange of each variable, and its name there; variables that are new get one.

        Parameters
        ----------
        variables : sequence
            What the framework knows of them.
        names : sequence of str
            Theirs.
        specs : sequence of TensorSpec
            Of their gradients; the name is set here.
        at
            As of :class:`HostExchange`; of those that are new.
        """
        new = [i for i, v in enumerate(variables) if id(v) not in self._host_of]
        if new:
            taken = {name for _, name in self._host_of.values()}
            unique = distinct([names[i] for i in new], taken)
            found = [replace(specs[i], name=name) for i, name in zip(new, unique, strict=True)]
            host = self._open(found, at)
            for index, name in zip(new, unique, strict=True):
                self._host_of[id(variables[index])] = host, name
        return [self._host_of[id(v)] for v in variables]

    def _open(self, specs: list[TensorSpec], at: Any) -> HostExchange:
        host = HostExchange(self.terms, specs, at)
        mine = {s.name: self._loaded.pop(s.name) for s in specs if s.name in self._loaded}
        if self._loaded and not mine and not self._hosts:
            raise GradflowError(
                f"the residuals that were loaded are of {', '.join(sorted(self._loaded)[:3])}, ..., and"
                f" the gradients of {', '.join(s.name for s in specs[:3])}, ...: no name is in both"
            )
        host.load_residual_state(mine)
        self._hosts.append(host)
        return host

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return the error-feedback residuals by name (float32, summed over the ranks); collective."""
        state = dict(self._loaded)
        for host in self._hosts:
            state.update(host.residual_state())
        return state

    def load_residual_state(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`residual_state` gave, on all ranks; what has no stream yet waits for it."""
        self._loaded = dict(state)
        for host in self._hosts:
            mine = {s.name: self._loaded.pop(s.name) for s in host.specs if s.name in self._loaded}
            host.load_residual_state(mine)

    def close(self) -> None:
        """Let the reducer forget the streams."""
        for host in self._hosts:
            host.close()
