"""The gradients of one distributed optimizer, on the drop-in path."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from horovod.torch import mpi_ops

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend import watchdog
from hvd_gradflow.frontend.delay import Delay
from hvd_gradflow.frontend.sparse import key_of
from hvd_gradflow.frontend.weights import WeightCheck
from hvd_gradflow.torch import remarks, session, sparse
from hvd_gradflow.torch.choice import Choice
from hvd_gradflow.torch.tensors import (
    BROADCAST,
    as_submitted,
    bytes_of,
    current,
    fetch,
    lies_at,
    numpy_state,
    place_of,
    spec_of,
    tell_if_moved,
    torch_state,
)


class GradientExchange:
    """Hands gradients to the reducer and brings the reduced ones back.

    Parameters
    ----------
    choice : Choice
        How they travel.
    parameters : sequence of (str, Parameter)
        In the order of the model, alike on all ranks of `process_set`.
    process_set : ProcessSet
        Who takes part.
    average : bool
        Whether the result is the average or the sum.
    predivide : float
        Horovod's ``gradient_predivide_factor``.
    sparse_as_dense : bool
        Whether sparse gradients are reduced as dense ones.
    importance : {"energy", "coordinate"}
        How the optimizer weighs errors.
    second_moment : callable
        Parameter to the optimizer's running second moment of its gradient, or None where there is none.
    max_staleness : int
        Steps between a gradient and its use.
    clip_grad_norm : float or None
        To what the optimizer clips reduced gradients; all ranks must alike.

    Attributes
    ----------
    applies : bool
        Whether there are reduced gradients in place since the last step ended; with staleness only.
    """

    def __init__(
        self,
        choice: Choice,
        parameters: Sequence[tuple[str, torch.Tensor]],
        process_set: Any,
        average: bool,
        predivide: float,
        sparse_as_dense: bool,
        importance: str,
        second_moment: Callable[[torch.Tensor], Any],
        max_staleness: int = 0,
        clip_grad_norm: float | None = None,
    ) -> None:
        by_name = dict(parameters)
        self.choice = choice
        self.names = {p: name for name, p in parameters}
        self.process_set = process_set
        self.average = average
        self.sparse_as_dense = sparse_as_dense
        self.reducer, self.scope = session.reducer_and_scope(process_set, choice.route, "optimizer")
        self.place = place_of(self.reducer, by_name.values())
        self.stream = self.reducer.stream(
            [spec_of(name, p) for name, p in parameters],
            codec=choice.policy(),
            scope=self.scope,
            op="average" if average else "sum",
            prescale=1.0 / predivide,
            postscale=predivide,
            importance=importance,
            second_moment=lambda name: second_moment(by_name[name]),
            max_staleness=max_staleness,
            in_place=True,  # as Horovod does, which reduces a gradient where it lies
            place=self.place,
            alike={"clip_grad_norm": clip_grad_norm},
        )
        self._weights = WeightCheck(self.reducer, self.scope, BROADCAST)
        self.max_staleness = max_staleness
        self.applies = False
        self._delay: Delay[dict[torch.Tensor, Callable[..., Any]]] = Delay(max_staleness)
        if max_staleness:
            # Called when the optimizer is dropped or the program ends; its arguments must not keep it alive.
            weakref.finalize(self, remarks.of_loss, self._delay, "the optimizer or the program ended")
        self.sent_by_horovod: Counter[str] = Counter()
        self._versions: dict[str, tuple[torch.Tensor, int]] = {}  # of gradients under way
        self._sparse: set[torch.Tensor] = set()
        self._agreed = -1  # joins so far when the ranks last agreed on what follows from no gradient
        self._sequence: Counter[str] = Counter()

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return parameter in self.names

    def start(self, name: str, parameter: torch.Tensor) -> Callable[..., torch.Tensor]:
        """Submit the gradient of the parameter of this name; returns what waits for it and gives the result.

        A dense result is written to the gradient; with staleness, to the tensor that the call names.
        """
        gradient = parameter.grad
        if self.max_staleness and gradient.layout != torch.strided:
            raise UnsupportedError(
                f"the gradient of {name!r} has layout {gradient.layout}: with max_staleness > 0 only dense"
                " gradients are carried (an embedding makes them with sparse=False)"
            )
        if gradient.layout == torch.sparse_coo:
            self._sparse.add(parameter)
            if not self.sparse_as_dense:
                return self._start_sparse(parameter, name)
            dense, dims = gradient.to_dense(), gradient.sparse_dim()
            with current(dense):
                pending = self.stream.submit(name, as_submitted(dense, parameter.dtype, self.place))
            return lambda: fetch(pending, dense, parameter.dtype, self.place).to_sparse(dims)
        if gradient.layout != torch.strided:
            raise UnsupportedError(
                f"the gradient of {name!r} has layout {gradient.layout}, expected strided or sparse_coo"
            )
        tell_if_moved(self.reducer, gradient, self.place)
        given = as_submitted(gradient, parameter.dtype, self.place)
        with current(gradient):
            handle = self.stream.submit(name, given)

        if self.max_staleness:  # it must not keep the gradient, which is copied, for so many steps
            return _Later(handle, parameter.dtype, self.place)
        self._versions[name] = gradient, gradient._version

        def wait() -> torch.Tensor:
            if gradient.data_ptr() != lies_at(given):  # a copy, or its memory is another now
                return fetch(handle, gradient, parameter.dtype, self.place)
            # On a device, where it lies, with its neighbours in one kernel.
            with current(gradient):
                handle.wait(out=given if self.place is None else None)
            return gradient

        return wait

    def look_for_changes(self) -> None:
        """Warn of a gradient that was changed since it was submitted; before any result is put in place.

        Afterwards nothing can be told: gradients that are parts of one tensor, as those of ``torch.cat``'s
        inputs, count their changes together.
        """
        for name, (gradient, version) in self._versions.items():
            if gradient._version != version:
                remarks.of_change(name)
        self.let_change()

    def let_change(self) -> None:
        """Let the gradients change: nothing is under way, or will be told of it."""
        self._versions.clear()

    def end_step(self, waits: dict[torch.Tensor, Callable[..., Any]]) -> None:
        """End a step with staleness: put the gradients that are due in place, or zeros while none are.

        `waits` has what :meth:`start` returned, for each parameter.
        """
        self.stream.advance()
        due = self._delay.push(waits, session.joins(self.reducer))
        self.applies = due is not None
        if due is not None:
            _put(due)
        else:
            for parameter in waits:
                parameter.grad.zero_()

    def due(self) -> bool:
        """Put the gradients of the oldest step under way in place; False if there is none."""
        step = self._delay.take(session.joins(self.reducer))
        if step is not None:
            _put(step)
        return step is not None

    def warn_if_under_way(self, when: str) -> None:
        """Warn, once a process, if there are steps that were not applied."""
        remarks.of_loss(self._delay, when)

    def drop(self) -> None:
        """Wait for all that is under way, and forget it."""
        self.let_change()
        while (step := self._delay.take()) is not None:
            for wait in step.values():
                wait()

    def missing(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the zero gradient of a parameter that had no part in this rank's loss."""
        if parameter not in self._sparse:
            return torch.zeros_like(parameter, requires_grad=False)
        indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_zeros((0, *parameter.shape[1:]))
        return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)

    def agree(self) -> None:
        """Compare the weights, and learn which gradients are sparse on some rank. Collective.

        At the first step, and at the first one after a join: some rank may have missed the ones before.
        """
        if self._agreed == session.joins(self.reducer):
            return
        self._agreed = session.joins(self.reducer)
        self._weights.announce(bytes_of(p) for p in self.names)
        if not self.max_staleness:  # with it there are no sparse ones
            self._agree_on_sparse()
        self._weights.look()

    def _agree_on_sparse(self) -> None:
        """Learn which gradients are sparse on some rank.

        A rank on which such a parameter had no gradient must take part in the allgather of the others. It
        cannot know by itself: torch tells from a gradient only, not from a parameter.
        """
        flags = np.array([p in self._sparse or _is_sparse(p) for p in self.names], np.float32)
        total = self.reducer.allreduce(flags, f"{self.scope}/sparse", op="sum", codec="none")
        self._sparse.update(p for p, count in zip(self.names, np.asarray(total), strict=True) if count > 0)

    def residual_state(self) -> dict[str, torch.Tensor]:
        """Return the error-feedback residual by name, summed over the ranks (float32); collective."""
        return torch_state(self.stream.residual_state())

    def load_residual_state(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`residual_state` gave; collective."""
        self.stream.load_residual_state(numpy_state(state))

    def _start_sparse(self, parameter: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        gradient = parameter.grad
        if gradient.sparse_dim() != 1 or gradient.dense_dim() != parameter.dim() - 1:
            gradient = _by_rows(gradient)
        codec = self.stream.codecs()[name]
        if not codec.lossy:
            wait = mpi_ops.sparse_allreduce_async(
                gradient,
                name=name,
                op=mpi_ops.Average if self.average else mpi_ops.Sum,
                process_set=self.process_set,
            )
            self._count_sparse(gradient, gradient._values().nbytes + gradient._indices().nbytes)
            return lambda: self._finish_sparse(parameter, self._guarded(wait).coalesce())
        self._sequence[name] += 1
        key = key_of(self.scope, name, self._sequence[name], self.reducer.rank)
        codec = sparse.stochastic(codec)
        message = sparse.pack(gradient, codec, key)
        self._count_sparse(gradient, message.nbytes)
        handle = mpi_ops.allgather_async(message, name=f"{name}.sparse", process_set=self.process_set)
        scale = 1.0 / self.reducer.size if self.average else 1.0

        def wait_and_sum() -> torch.Tensor:
            messages = self._guarded(lambda: mpi_ops.synchronize(handle))
            parts = sparse.unpack(messages, codec, parameter.shape)
            return self._finish_sparse(parameter, sparse.combine(parts, gradient, scale))

        return wait_and_sum

    def _guarded(self, wait: Callable[[], torch.Tensor]) -> torch.Tensor:
        with watchdog.guarded(self.reducer):
            return wait()

    @staticmethod
    def _finish_sparse(parameter: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        # Horovod adds the result to the zeroed gradient, which must be of the same kind.
        if parameter.grad.sparse_dim() != total.sparse_dim():
            parameter.grad = torch.zeros_like(total)
        return total

    def _count_sparse(self, gradient: torch.Tensor, sent: int) -> None:
        plain = gradient._values().nbytes + gradient._indices().nbytes
        others = self.reducer.size - 1
        session.on_horovods_wire(self.sent_by_horovod, sent * others, plain * others)


class _Later:
    """Waits for one gradient, and writes it to a tensor that is named then."""

    def __init__(self, handle: Any, dtype: torch.dtype, place: Any) -> None:
        self._handle, self._dtype, self._place = handle, dtype, place

    def __call__(self, into: torch.Tensor | None = None) -> torch.Tensor | None:
        if into is None:
            self._handle.wait()
            return None
        return fetch(self._handle, into, self._dtype, self._place)


def _put(step: Mapping[torch.Tensor, Callable[..., Any]]) -> None:
    for parameter, wait in step.items():
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        wait(parameter.grad)


def _is_sparse(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.layout == torch.sparse_coo


def _by_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Return a sparse gradient of any dimensions with one sparse dimension, as embeddings make them."""
    gradient = gradient.coalesce()
    rows, inverse = torch.unique(gradient.indices()[0], return_inverse=True)
    values = gradient.values().new_zeros((rows.numel(), *gradient.shape[1:]))
    values[(inverse, *gradient.indices()[1:])] = gradient.values()
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, gradient.shape, check_invariants=False)
