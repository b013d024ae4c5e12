"""The stock path: a compressor that unmodified ``horovod.tensorflow`` calls for each gradient.

Horovod hands over a gradient without its name, one after another in the order of the tape's sources (or the
optimizer's variables), leaving out those that are None; so the n-th call for one tape is the n-th bound
variable, as its shape and dtype confirm. ``compress`` submits it to the reducer and gives Horovod
a token to reduce (see :mod:`hvd_gradflow.frontend.token`), ``decompress`` waits for the reducer. Without
``groups`` Horovod takes tensor by tensor, so each is a unit of its own; with ``groups=1`` all are under way
together.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_gradflow import config
from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError
from hvd_gradflow.frontend import token, watchdog
from hvd_gradflow.frontend.kinds import distinct
from hvd_gradflow.reduce import TensorSpec
from hvd_gradflow.tensorflow.graph import host_op, refuse_xla
from hvd_gradflow.tensorflow.session import session
from hvd_gradflow.tensorflow.variables import DTYPES, name_of, plain, spec_of


@dataclass(frozen=True)
class _Small:
    """A gradient that Horovod reduces itself."""

    dtype: tf.DType


@dataclass
class _Submitted:
    """A gradient that the reducer has, while Horovod has its token."""

    spec: TensorSpec
    dtype: tf.DType
    handle: Any = None
    identity: int = 0
    what: str = ""


@dataclass
class _Trace:
    """How far the gradients of one tape have come through the bound variables, while it is traced."""

    next: int = 0
    skipped: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


class BoundCompression:
    """What :meth:`Choice.bind` returns: ``compress`` and ``decompress`` for unmodified Horovod.

    Parameters
    ----------
    choice : Choice
        How the gradients travel.
    variables : iterable of tf.Variable
        In the order in which the tape or the optimizer is given them.
    process_set : ProcessSet, optional
        That of the tape or the optimizer.
    scope : str, optional
        Of the names; a number in order of creation by default.
    importance : {"energy", "coordinate"}
        How the optimizer weighs errors.
    """

    def __init__(
        self,
        choice: Any,
        variables: Iterable[Any],
        process_set: Any = None,
        scope: str | None = None,
        importance: str = "energy",
    ) -> None:
        if importance not in ("energy", "coordinate"):
            raise ConfigError(f"importance={importance!r}: expected 'energy' or 'coordinate'")
        if hasattr(variables, "trainable_variables"):
            variables = variables.trainable_variables  # a model
        found = [plain(v) for v in variables]
        for variable in found:
            if not isinstance(variable, tf.Variable):
                raise ConfigError(
                    f"{choice!r}.bind: expected variables, as model.trainable_variables, got {variable!r:.60}"
                )
        if not found:
            raise ConfigError(f"{choice!r}.bind: no variables to bind; an iterator that was used up already?")
        self.choice = choice
        self.reducer: Any = None
        self.stream: Any = None
        self.sent_by_horovod: Counter[str] = Counter()
        names = distinct(name_of(v) for v in found)
        self._generation = -1
        self._min_elements = max(config.load().min_elements, 1)
        self._specs = [spec_of(n, v.shape, v.dtype) for n, v in zip(names, found, strict=True)]
        self._process_set, self._scope, self._importance = process_set, scope, importance
        self._traces: weakref.WeakKeyDictionary[Any, dict[str, _Trace]] = weakref.WeakKeyDictionary()
        self._sequence: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"{self.choice!r}.bind(<{len(self._specs)} variables>)"

    @tf.autograph.experimental.do_not_convert
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Take over one gradient; called by Horovod.

        Returns
        -------
        wire : tf.Tensor
            For Horovod to reduce: a token, or a small gradient itself.
        ctx
            For :meth:`decompress`.
        """
        refuse_xla(f"{self!r}")
        tensor = tf.convert_to_tensor(tensor)
        spec = self._spec_of(tensor)
        if spec.elements < self._min_elements:
            # Horovod adds 16-bit numbers in 16 bits, where two of 60000 overflow; and all tensors of a group
            # must have the dtype of its tokens.
            return tf.cast(tensor, tf.float64), _Small(tensor.dtype)
        ctx = _Submitted(spec, tensor.dtype)

        def start(gradient: np.ndarray) -> np.ndarray:
            with default_float_env():
                self._connect()
                self._sequence[spec.name] += 1
                sequence = self._sequence[spec.name]
                ctx.identity = token.checksum(
                    f"{self.stream.scope}/{spec.name}", sequence, spec.elements, spec.dtype
                )
                ctx.what = (
                    f"gradient {spec.name!r}, sequence {sequence}, {spec.elements} elements of {spec.dtype}"
                )
                ctx.handle = self.stream.submit(spec.name, gradient)
                self._count(token.BYTES, 0)
                watchdog.enter(self.reducer)
                return token.make(ctx.identity, self.reducer.rank)

        return host_op(start, [tensor], [tf.float64], "gradflow_start", [(3,)])[0], ctx

    @tf.autograph.experimental.do_not_convert
    def decompress(self, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the reduced gradient for what came back from Horovod; called by Horovod."""
        if isinstance(ctx, _Small):
            return tf.cast(tensor, ctx.dtype)

        def finish(reduced: np.ndarray) -> np.ndarray:
            with default_float_env():
                try:
                    factor = token.factor(reduced, ctx.identity, self.reducer.size, ctx.what)
                    result = np.empty(ctx.spec.shape, ctx.dtype.as_numpy_dtype)
                    ctx.handle.wait(out=result)
                except BaseException:
                    watchdog.forget(self.reducer)
                    raise
                watchdog.leave(self.reducer)
                return result if factor == 1.0 else (result * factor).astype(result.dtype)

        return host_op(finish, [tensor], [ctx.dtype], "gradflow_wait", [ctx.spec.shape])[0]

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return the error-feedback residuals by name (float32, summed over the ranks); collective."""
        self._connect()
        return {} if self.stream is None else self.stream.residual_state()

    def load_residual_state(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`residual_state` gave; collective. The number of ranks may be another."""
        self._connect()
        self.stream.load_residual_state({n: np.asarray(v, np.float32) for n, v in state.items()})

    def _connect(self) -> None:
        if self._generation == session.generation:
            return
        session.require(repr(self))
        hvd = session.horovod()
        process_set = self._process_set or hvd.global_process_set
        if not process_set.included():
            return
        self.reducer, scope = session.reducer_and_scope(process_set, self.choice.route, "bound", self._scope)
        large = [spec for spec in self._specs if spec.elements >= self._min_elements]
        self.stream = self.reducer.stream(
            large, codec=self.choice.policy(), scope=scope, op="average", importance=self._importance
        )
        self._generation = session.generation

    def _spec_of(self, tensor: tf.Tensor) -> TensorSpec:
        """Return which bound variable a gradient belongs to, by order, and by shape and dtype."""
        if not hasattr(tensor, "graph") or tf.executing_eagerly():
            raise UnsupportedError(
                f"{self!r} knows a gradient by its place among those of a tape or optimizer: give it to"
                " horovod.tensorflow.DistributedGradientTape or DistributedOptimizer, not to allreduce()"
            )
        graph = tensor.graph
        while getattr(graph, "outer_graph", None) is not None and hasattr(graph.outer_graph, "captures"):
            graph = graph.outer_graph
        # Horovod opens a scope of this name for the gradients of each tape.
        scope = re.match(r"(.*/)?[^/]*_Allreduce(_\d+)?(?=/|$)", graph.get_name_scope())
        traces = self._traces.setdefault(graph, {})
        trace = traces.setdefault(scope.group() if scope else "", _Trace())
        dtype = DTYPES.get(tensor.dtype)
        for index in range(trace.next, len(self._specs)):
            spec = self._specs[index]
            # A dense copy of a sparse gradient does not know its first extent.
            if spec.dtype == dtype and tensor.shape.is_compatible_with(spec.shape):
                trace.next = index + 1
                trace.taken.append(index)
                return self._unless_ambiguous(spec, trace)
            trace.skipped.append(index)
        raise GradflowError(
            f"{self!r}: a gradient of shape {tensor.shape} and dtype {tensor.dtype.name} belongs to none of"
            " the bound variables that are left: bind the variables that the tape or the optimizer is given,"
            " in that order, and the same on every rank"
        )

    def _unless_ambiguous(self, spec: TensorSpec, trace: _Trace) -> TensorSpec:
        """Refuse where a variable without a gradient is of the same shape as one that was taken for it."""
        for missing in trace.skipped:
            like = self._specs[missing]
            for index in trace.taken:
                other = self._specs[index]
                if index < missing and (other.shape, other.dtype) == (like.shape, like.dtype):
                    raise GradflowError(
                        f"{self!r}: some variables have no gradient, and it is not clear whether that of"
                        f" {other.name!r} or {like.name!r} is missing: bind only those that have one"
                    )
        return spec

    def _count(self, wire: int, uncompressed: int) -> None:
        share = 2 * (self.reducer.size - 1) / self.reducer.size
        session.on_horovods_wire(self.sent_by_horovod, wire * share, uncompressed * share)
