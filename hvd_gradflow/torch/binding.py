"""The stock path: a compressor that unmodified ``horovod.torch`` calls for each gradient.

Horovod hands over a gradient without its name. A hook on each parameter, which fires just before Horovod's
own, records whose gradient it is; ``compress`` submits it to the reducer and gives Horovod a token to reduce
(see :mod:`hvd_gradflow.frontend.token`), ``decompress`` waits for the reducer. Small gradients are handed to
Horovod as they are. Nothing here depends on the order of the calls: for parameters without a gradient Horovod
walks a set, in another order on each rank.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hvd_gradflow import config
from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError
from hvd_gradflow.frontend import token, watchdog
from hvd_gradflow.frontend.weights import WeightCheck
from hvd_gradflow.torch import session
from hvd_gradflow.torch.tensors import (
    BROADCAST,
    DTYPES,
    as_submitted,
    bytes_of,
    current,
    embedding_parameters,
    fetch,
    named_list,
    numpy_state,
    on_host,
    place_of,
    spec_of,
    tell_if_moved,
    torch_state,
)

# Horovod adds 16-bit numbers in 16 bits, where two of 60000 overflow, and knows no bfloat16.
_WIRE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True)
class _Small:
    """A gradient that Horovod reduces itself."""

    gradient: torch.Tensor


@dataclass(frozen=True)
class _Token:
    """A gradient that the reducer has, while Horovod has its token."""

    gradient: torch.Tensor
    dtype: torch.dtype  # of what was submitted
    handle: Any
    identity: int
    what: str


class BoundCompression:
    """What :meth:`Choice.bind` returns: ``compress`` and ``decompress`` for Horovod's own optimizer.

    Parameters
    ----------
    choice : Choice
        How the gradients travel.
    parameters : torch.nn.Module, or iterable of (str, Parameter)
        All parameters that the optimizer holds.
    process_set : ProcessSet, optional
        The optimizer's process set.
    scope : str, optional
        Of the names; a number in order of creation by default.
    importance : {"energy", "coordinate"}
        How the optimizer weighs errors.
    """

    def __init__(
        self,
        choice: Any,
        parameters: Any,
        process_set: Any = None,
        scope: str | None = None,
        importance: str = "energy",
    ) -> None:
        if importance not in ("energy", "coordinate"):
            raise ConfigError(f"importance={importance!r}: expected 'energy' or 'coordinate'")
        embeddings = embedding_parameters(parameters) if isinstance(parameters, torch.nn.Module) else set()
        pairs = named_list(parameters)
        if not pairs:
            raise ConfigError(
                f"{choice!r}.bind: no parameters to bind; an iterator that was used up already?"
            )
        self.choice = choice
        self.reducer: Any = None
        self.place: Any = None
        self.stream: Any = None
        self._weights: Any = None  # compared in the first step
        self.sent_by_horovod: Counter[str] = Counter()
        self._names = {p: name for name, p in pairs}
        self._process_set = process_set
        self._scope = scope
        self._importance = importance
        self._min_elements = config.load().min_elements
        self._specs = [
            spec_of(name, p, embeddings)
            for p, name in self._names.items()
            if p.requires_grad and not self._is_small(p)
        ]
        self._streamed = {spec.name for spec in self._specs}
        self._sequence: Counter[str] = Counter()
        self._owner: dict[int, torch.Tensor] = {}  # id of a gradient -> its parameter; checked before use
        self._local = threading.local()  # the parameter whose hook ran last in this thread
        ref = weakref.ref(self)

        def record(parameter: torch.Tensor) -> None:
            bound = ref()
            if bound is not None:
                bound._owner[id(parameter.grad)] = parameter
                bound._local.last = parameter

        self._hooks = [p.register_post_accumulate_grad_hook(record) for p in self._names if p.requires_grad]
        if session.horovod().is_initialized():
            self._connect()

    def __repr__(self) -> str:
        return f"{self.choice!r}.bind(<{len(self._names)} parameters>)"

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Take over one gradient; called by Horovod.

        Returns
        -------
        wire : Tensor
            For Horovod to reduce: a token, or a small gradient itself.
        ctx
            For :meth:`decompress`.
        """
        parameter = self._parameter_of(tensor)
        name = self._names[parameter]
        self._connect()
        if self._weights is None and self.reducer is not None:
            self._weights = WeightCheck(self.reducer, self.stream.scope, BROADCAST)
            self._weights.announce(bytes_of(p) for p in self._names if p.requires_grad)
        if self._is_small(tensor):
            wire = on_host(tensor, _WIRE.get(tensor.dtype))
            self._count(wire.nbytes, wire.nbytes)
            return wire, _Small(tensor)
        if name not in self._streamed:
            raise GradflowError(
                f"{name!r} was frozen when it was bound: call .bind() after requires_grad is as it will be"
            )
        self._sequence[name] += 1
        sequence, elements, dtype = self._sequence[name], tensor.numel(), DTYPES[parameter.dtype]
        identity = token.checksum(f"{self.stream.scope}/{name}", sequence, elements, dtype)
        tell_if_moved(self.reducer, tensor, self.place)
        with current(tensor):
            handle = self.stream.submit(name, as_submitted(tensor, parameter.dtype, self.place))
        self._count(token.BYTES, 0)
        watchdog.enter(self.reducer)
        what = f"gradient {name!r}, sequence {sequence}, {elements} elements of {dtype}"
        return torch.from_numpy(token.make(identity, self.reducer.rank)), _Token(
            tensor, parameter.dtype, handle, identity, what
        )

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the reduced gradient for what came back from Horovod; called by Horovod."""
        if ctx is None:
            return tensor  # a sparse gradient, which Horovod gathers without asking for compress
        if isinstance(ctx, _Small):
            if tensor.data_ptr() != ctx.gradient.data_ptr() or tensor.dtype != ctx.gradient.dtype:
                ctx.gradient.detach().copy_(tensor)
            return ctx.gradient
        try:
            factor = token.factor(tensor, ctx.identity, self.reducer.size, ctx.what)
            fetch(ctx.handle, ctx.gradient, ctx.dtype, self.place)
            self._weights.look()  # every rank has submitted this gradient, and its weights before
        except BaseException:
            watchdog.forget(self.reducer)
            raise
        watchdog.leave(self.reducer)
        return ctx.gradient if factor == 1.0 else ctx.gradient.detach().mul_(factor)

    def residual_state(self) -> dict[str, torch.Tensor]:
        """Return the error-feedback residuals by parameter name (float32, summed over ranks); collective."""
        self._connect()
        return {} if self.stream is None else torch_state(self.stream.residual_state())

    def load_residual_state(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`residual_state` gave; collective. The number of ranks may be another."""
        self._connect()
        if self.stream is not None:
            self.stream.load_residual_state(numpy_state(state))

    def unbind(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _connect(self) -> None:
        """Open the stream; at construction where Horovod is initialised by then, collective."""
        if self.stream is not None:
            return
        session.require(repr(self.choice))
        hvd = session.horovod()
        process_set = self._process_set or hvd.global_process_set
        if not process_set.included():
            return
        self.reducer, scope = session.reducer_and_scope(process_set, self.choice.route, "bound", self._scope)
        self.place = place_of(self.reducer, self._names)
        # What Horovod is asked for (op, factors) the token tells, when the gradient is under way already.
        self.stream = self.reducer.stream(
            self._specs,
            codec=self.choice.policy(),
            scope=scope,
            op="average",
            importance=self._importance,
            place=self.place,
        )

    def _parameter_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor in self._names:
            raise UnsupportedError(
                f"{self!r}: Horovod hands over the weights of {self._names[tensor]!r}, as for op=hvd.Adasum,"
                " which works on uncompressed tensors: use op=hvd.Average or hvd.Sum, or"
                " compression=hvd.Compression.none"
            )
        last = getattr(self._local, "last", None)
        self._local.last = None
        for parameter in (last, self._owner.get(id(tensor))):
            if parameter is not None and parameter.grad is tensor:
                return parameter
        if last is not None and _dense_copy(last, tensor):
            return last
        self._owner = {id(p.grad): p for p in self._names if p.grad is not None}
        if id(tensor) in self._owner:
            return self._owner[id(tensor)]
        # A dense copy of a sparse gradient, made outside of a hook.
        same = [p for p in self._names if _dense_copy(p, tensor)]
        if len(same) == 1:
            return same[0]
        found = "none" if not same else "several: " + ", ".join(repr(self._names[p]) for p in same)
        raise GradflowError(
            f"{self!r}: a tensor of shape {tuple(tensor.shape)} and dtype {tensor.dtype} should be the"
            f" gradient of one bound parameter, and matches {found}: bind every parameter that the"
            " optimizer holds, and compress nothing but its gradients; or `import hvd_gradflow.torch as hvd`,"
            " which knows names"
        )

    def _is_small(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() < max(self._min_elements, 1)

    def _count(self, wire: int, uncompressed: int) -> None:
        # What an allreduce of n bytes costs each rank: 2 (N - 1) / N n, on a ring.
        share = 2 * (self.reducer.size - 1) / self.reducer.size if self.reducer is not None else 0
        session.on_horovods_wire(self.sent_by_horovod, wire * share, uncompressed * share)


def _dense_copy(parameter: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is what the parameter's sparse gradient gives as a dense one.

    By content: of several parameters of one shape, the one whose hook ran last need not be the one that
    Horovod is at, when it steps before ``backward_passes_per_step`` passes.
    """
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.sparse_coo or gradient.shape != tensor.shape:
        return False
    dense = gradient.to_dense()
    return bool(((dense == tensor) | (dense.isnan() & tensor.isnan())).all())
