"""``DistributedOptimizer``: Horovod's own, whose gradients go through our reducer."""

from __future__ import annotations

from typing import Any

import torch
from horovod.torch import optimizer as stock
from horovod.torch.mpi_ops import Adasum, Average, ProcessSet, global_process_set, nccl_built

from hvd_gradflow.control import clipping as limits
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend.carrier import carrier
from hvd_gradflow.frontend.delay import checked
from hvd_gradflow.frontend.importance import importance_of
from hvd_gradflow.torch import session, staleness
from hvd_gradflow.torch.choice import Choice, Compression, as_choice
from hvd_gradflow.torch.clipping import clipping_step
from hvd_gradflow.torch.exchange import GradientExchange
from hvd_gradflow.torch.tensors import DTYPES, on_host

_Stock = stock._DistributedOptimizer

_SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")  # as torch.optim calls them


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    max_staleness: int = 0,
    clip_grad_norm: float | None = None,
) -> torch.optim.Optimizer:
    """Wrap an optimizer so that gradients are reduced over the ranks before each step.

    As ``horovod.torch.DistributedOptimizer``, with the same arguments. In addition the optimizer has
    ``residual_state()`` and ``load_residual_state(state)`` for checkpoints: collective over the process set,
    error-feedback residuals by parameter name, independent of the number of ranks.

    As in Horovod, gradients are reduced where they lie: between ``backward()`` and ``step()`` or
    ``synchronize()`` they are neither read nor changed.

    With ``max_staleness=k`` a step applies the reduced gradients of k steps ago, while those of the steps
    since travel: on a slow network a step takes the longer of computing and communicating, not both. In the
    first k steps gradients are zero and the wrapped optimizer is not called. ``drain()`` applies what is left
    at the end. What is under way is not part of ``state_dict()``: who continues from a checkpoint that was
    saved without ``drain()`` has lost the gradients of k steps, and begins with k steps that apply nothing; a
    warning says so once.

    With ``clip_grad_norm=x`` each step scales the reduced gradients so that the norm of all together is at
    most x, as ``torch.nn.utils.clip_grad_norm_`` between ``synchronize()`` and ``step()``; nothing more is
    exchanged. The norm before clipping is ``grad_norm`` afterwards (a tensor; None before the first step),
    the same number on every rank, to the bit where gradients are on the host. If it is not finite, gradients
    stay as they are, so that a loss scaler sees what it looks for. With a GradScaler clipping comes after
    ``unscale_``: ``synchronize()``, ``scaler.unscale_(optimizer)``, and ``scaler.step(optimizer)`` within
    ``skip_synchronize()``.

    Parameters
    ----------
    optimizer, named_parameters, backward_passes_per_step, op, gradient_predivide_factor, num_groups
        As in Horovod.
    groups, sparse_as_dense, process_set
        As in Horovod.
    compression : Choice, or one of Horovod's own compressors
        ``hvd.Compression.adaptive``, ``hvd.Compression.int8(block=512)``, ... With a compressor of Horovod's
        the gradients take Horovod's own way.
    max_staleness : int
        Steps between a gradient and its use, the same on all ranks; with one rank there are none. Buffers for
        gradients take `max_staleness` + 1 times the memory. Not with sparse gradients, closures or a
        GradScaler.
    clip_grad_norm : float, optional
        The largest norm that the gradients of a step may have, all together, sparse ones too; of the sum over
        `backward_passes_per_step` passes, as Horovod does not divide it.

    Raises
    ------
    ConfigError
        For a `clip_grad_norm` that is not positive.
    UnsupportedError
        For a compression that this job cannot carry: op is Adasum, Min, Max or Product, Horovod runs without
        MPI or without MPI_THREAD_MULTIPLE, or a parameter's dtype has no codec. For `max_staleness` where
        gradients take Horovod's own way; for `clip_grad_norm` with Adasum, which reduces no gradients.
    """
    limit = limits.checked(clip_grad_norm, "clip_grad_norm")
    if limit is not None and op == Adasum:
        raise UnsupportedError(
            "clip_grad_norm with op=hvd.Adasum, which combines steps and reduces no gradients"
        )
    if named_parameters is not None:
        named_parameters = list(named_parameters)
    choice = as_choice(compression)
    if choice is not None:
        choice, compression = carrier(session.session, choice, op)
    max_staleness = checked(max_staleness, choice)
    wrapped = stock.DistributedOptimizer(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        sparse_as_dense,
        process_set,
    )
    exchange = None
    if choice is not None:
        parameters = _ours(wrapped, named_parameters, choice, max_staleness)
        if parameters:
            exchange = GradientExchange(
                choice,
                parameters,
                process_set,
                average=op == Average,
                predivide=gradient_predivide_factor,
                sparse_as_dense=sparse_as_dense,
                importance=importance_of(optimizer),
                second_moment=lambda p: second_moment_of(wrapped, p),
                max_staleness=max_staleness,
                clip_grad_norm=limit,
            )
    _graft(wrapped, exchange, limit)
    return wrapped


def second_moment_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the running second moment that an optimizer keeps of a gradient, on the CPU, or None."""
    state = optimizer.state.get(parameter, {})
    for key in _SECOND_MOMENTS:
        moment = state.get(key)
        if isinstance(moment, torch.Tensor) and moment.shape == parameter.shape:
            return on_host(moment, torch.float32)
    return None


def _ours(
    wrapped: Any, named: list | None, choice: Choice, max_staleness: int
) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that our reducer takes, in the order of the model; none without other ranks.

    Horovod has hooks on `_requires_update` only: none with one rank, and none outside of the process set.
    """
    if named is None:
        named = [(wrapped._parameter_names[p], p) for group in wrapped.param_groups for p in group["params"]]
    names = wrapped._parameter_names  # one name a parameter, where `named` may hold several
    hooked = [(name, p) for name, p in named if p in wrapped._requires_update and names[p] == name]
    if not choice.lossless or max_staleness:
        return hooked
    # Uncompressed, Horovod has better ways between GPUs, and its own words for dtypes that nobody carries.
    return [(n, p) for n, p in hooked if p.dtype in DTYPES and not (p.is_cuda and nccl_built())]


class _Members(list):
    """The handles of one group; not a handle that Horovod's ``synchronize`` could take."""


def _graft(wrapped: Any, exchange: GradientExchange | None, limit: float | None) -> None:
    """Put our methods on the class that Horovod made for this one optimizer.

    Its ``__module__`` stays Horovod's: ``broadcast_optimizer_state`` knows a distributed optimizer by it, and
    would otherwise call its ``step``, which waits for gradients that never come.
    """
    cls = type(wrapped)
    wrapped.gradflow = exchange
    wrapped.grad_norm = None
    horovods_step = cls.step
    apply = clipping_step(horovods_step, limit)  # of gradients that are reduced

    def step(self: Any, closure: Any = None) -> Any:
        if not self._should_synchronize:
            return apply(self, closure)
        if closure is None:
            if limit is None:
                return horovods_step(self)
            staleness.refuse_reduced(self)
            self.synchronize()
            with self.skip_synchronize():
                return apply(self)

        def reduced_closure() -> Any:
            # Its backward pass makes the gradients that this step takes: reduce these, not those before it.
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        with self.skip_synchronize():
            return apply(self, reduced_closure)

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._handles:
            return _Stock.zero_grad(self)  # raises
        return super(cls, self).zero_grad(*args, **kwargs)

    vars(step)["hooked"] = True  # torch must not wrap it once more: horovods_step is wrapped already
    cls.zero_grad = zero_grad
    if hasattr(wrapped, "op"):  # not the Adasum optimizer, which has a way of its own
        cls.step = step
    methods: list[Any] = [residual_state, load_residual_state, staleness.drain_by(apply)]
    if exchange is not None:
        methods += [_allreduce_grad_async, _grouped_allreduce_grad_async, load_state_dict]
        methods.append(staleness.synchronize if exchange.max_staleness else synchronize)
    if exchange is not None and exchange.max_staleness:
        methods.append(staleness.state_dict_by(cls.state_dict))
        cls.step = staleness.step_by(apply)
        vars(cls.step)["hooked"] = True
    for method in methods:
        setattr(cls, method.__name__, method)


def _allreduce_grad_async(self: Any, p: torch.Tensor) -> tuple[Any, Any]:
    exchange = self.gradflow
    name = exchange.names.get(p)
    if name is None:
        return _Stock._allreduce_grad_async(self, p)
    if p.grad is None:
        p.grad = exchange.missing(p)
    return exchange.start(name, p), None


def _grouped_allreduce_grad_async(self: Any, ps: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    if not any(p in self.gradflow for p in ps):
        return _Stock._grouped_allreduce_grad_async(self, ps)
    return _Members(self._allreduce_grad_async(p) for p in ps), None


def synchronize(self: Any) -> None:
    """Wait until the gradients of this step are reduced."""
    for group, (handle, _) in list(self._handles.items()):
        if isinstance(handle, _Members):
            del self._handles[group]
            self._handles.update(zip(group, handle, strict=True))
    staleness.refuse_missing(self)
    self.gradflow.agree()
    self.gradflow.look_for_changes()
    try:
        _Stock.synchronize(self)
    finally:
        self.gradflow.let_change()  # what Horovod submitted by itself has its result now


def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
    """Load the wrapped optimizer's state; what is under way is waited for and dropped."""
    for handle, _ in list(self._handles.values()):
        for one in handle if isinstance(handle, _Members) else [(handle, None)]:
            if callable(one[0]):
                one[0]()
    self.gradflow.drop()
    _Stock.load_state_dict(self, *args, **kwargs)


def residual_state(self: Any) -> dict[str, torch.Tensor]:
    """Return the error-feedback residuals by parameter name (float32), to be saved with a checkpoint.

    Collective over the process set: every rank must call it, and gets the same. Not part of ``state_dict()``,
    which many programs call on one rank only.
    """
    return {} if self.gradflow is None else self.gradflow.residual_state()


def load_residual_state(self: Any, state: Any) -> None:
    """Put back what ``residual_state()`` returned; collective. The number of ranks may be another."""
    if self.gradflow is not None:
        self.gradflow.load_residual_state(state)
