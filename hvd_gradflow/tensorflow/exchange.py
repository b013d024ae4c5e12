"""Gradients of TensorFlow to the reducer and back, eagerly and in graphs, dense and sparse."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_gradflow import config
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend.exchange import HostExchange, Terms
from hvd_gradflow.frontend.kinds import distinct
from hvd_gradflow.frontend.streams import Streams
from hvd_gradflow.reduce import TensorSpec
from hvd_gradflow.tensorflow import sparse
from hvd_gradflow.tensorflow.choice import Choice
from hvd_gradflow.tensorflow.graph import op_at, refuse_xla
from hvd_gradflow.tensorflow.on_device import Site, given, room, site_of
from hvd_gradflow.tensorflow.session import session
from hvd_gradflow.tensorflow.variables import name_of, plain, spec_of

Moments = Callable[[Any], Any]


class GradientExchange(Streams):
    """How the gradients of one tape or optimizer are reduced; see :class:`Streams`.

    Parameters
    ----------
    choice, process_set, average, predivide, importance, kind
        As of :class:`Terms`.
    sparse_as_dense : bool
        Whether sparse gradients are reduced as dense ones.
    max_staleness
        As of :class:`Terms`; sparse gradients are refused then.
    alike
        As of :class:`Terms`.
    """

    def __init__(
        self,
        choice: Choice,
        process_set: Any,
        average: bool,
        predivide: float = 1.0,
        sparse_as_dense: bool = False,
        importance: str = "energy",
        kind: str = "tape",
        max_staleness: int = 0,
        alike: Mapping[str, object] | None = None,
    ) -> None:
        terms = Terms(
            session, choice, process_set, average, predivide, importance, kind, max_staleness, alike or {}
        )
        super().__init__(terms)
        self.sparse_as_dense = sparse_as_dense
        self._site: Site | None = None  # where dense gradients are reduced, from the first ones on
        self._bucket = config.load().bucket_mib * 2**20 / 4
        self._sparse = sparse.SparseExchange(choice, process_set, average, self.sent_by_horovod)

    @tf.autograph.experimental.do_not_convert
    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], moments: Moments | None = None
    ) -> list[Any]:
        """Return the reduced gradients; None stays None, and ``tf.IndexedSlices`` stay so.

        Parameters
        ----------
        gradients : sequence of tf.Tensor, tf.IndexedSlices or None
        variables : sequence of tf.Variable or keras.Variable
        moments : callable, optional
            Variable to the optimizer's running second moment of its gradient (a variable), or None.
        """
        session.require(repr(self.choice))
        refuse_xla(f"{self.choice!r}")
        if self.alone:
            return list(gradients)
        results = list(gradients)
        dense, slices = [], []
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
                slices.append(index)
            elif gradient is not None:
                dense.append(index)
        if slices and self.terms.max_staleness:
            raise UnsupportedError(
                f"the gradient of {name_of(variables[slices[0]])!r} is sparse (tf.IndexedSlices): with"
                " max_staleness > 0 only dense ones are carried; use sparse_as_dense=True"
            )
        if dense:
            found = self._reduce_dense(
                [tf.convert_to_tensor(gradients[i]) for i in dense], [variables[i] for i in dense], moments
            )
            for index, result in zip(dense, found, strict=True):
                results[index] = result
        names = distinct(name_of(variables[i]) for i in slices)
        for index, name in zip(slices, names, strict=True):
            results[index] = self._sparse.reduce(
                gradients[index], plain(variables[index]).shape.as_list(), name
            )
        return results

    def _reduce_dense(
        self, gradients: list[tf.Tensor], variables: list[Any], moments: Moments | None
    ) -> list[tf.Tensor]:
        names = [name_of(v) for v in variables]
        specs = [
            spec_of(name, plain(v).shape, g.dtype)
            for name, v, g in zip(names, variables, gradients, strict=True)
        ]
        inner = [plain(v) for v in variables]
        if not self._hosts:
            self._site = site_of(v.device for v in inner)
        site = self._site
        places = self.places(inner, names, specs, site)
        known: dict[int, Any] = {}
        if moments is not None and self.may_normalize:
            found = ((i, moments(v)) for i, v in enumerate(variables))
            known = {i: tf.convert_to_tensor(plain(m)) for i, m in found if m is not None}
        started = [
            self._start([places[i] for i in part], [gradients[i] for i in part], [known.get(i) for i in part])
            for part in _parts(specs, self._bucket)
        ]
        dtypes, shapes = [g.dtype for g in gradients], [spec.shape for spec in specs]

        def wait(host: HostExchange, name: str, shape: tuple[int, ...], dtype: tf.DType) -> Any:
            result, lent = room(site, host.place, shape, dtype)
            host.wait(name, lent)
            return result

        def finish(*_: Any) -> list[Any]:
            for host in dict.fromkeys(host for host, _ in places):
                host.end_step()
            return [
                wait(host, name, shape, dtype)
                for (host, name), shape, dtype in zip(places, shapes, dtypes, strict=True)
            ]

        return op_at(site, finish, started, dtypes, "gradflow_wait", shapes)

    def _start(
        self,
        places: list[tuple[HostExchange, str]],
        gradients: list[tf.Tensor],
        moments: list[tf.Tensor | None],
    ) -> tf.Tensor:
        """Submit some gradients; returns what :meth:`_reduce_dense` waits for. Never blocks."""
        known = [i for i, moment in enumerate(moments) if moment is not None]
        site = self._site

        def start(*arrays: Any) -> np.ndarray:
            second = {i: given(site, None, a) for i, a in zip(known, arrays[len(places) :], strict=True)}
            for i, (host, name) in enumerate(places):
                host.submit(name, given(site, host.place, arrays[i]), second.get(i))
            return np.zeros((), np.int64)

        inputs = [*gradients, *(moments[i] for i in known)]
        return op_at(site, start, inputs, [tf.int64], "gradflow_start", [()])[0]


def _parts(specs: Sequence[TensorSpec], limit: float) -> list[list[int]]:
    """Return indices of gradients to be submitted together, the last ones first: `limit` elements or more."""
    parts: list[list[int]] = [[]]
    size = 0
    for index in reversed(range(len(specs))):
        if size >= limit:
            parts.append([])
            size = 0
        parts[-1].append(index)
        size += specs[index].elements
    return parts


_exchanges: dict[tuple, GradientExchange] = {}


def exchange_of(
    variables: Sequence[Any], choice: Choice, process_set: Any, alike: Mapping[str, object], **options: Any
) -> GradientExchange:
    """Return the exchange for a list of variables: the same one, step after step, as long as they live.

    A tape is made anew for each step; what it has to remember (residuals, versions) is kept here. What the
    ranks must have alike is compared in its first step; later it may be other than that.
    """
    known = tuple(id(plain(v)) for v in variables)
    wanted = (choice, id(process_set), tuple(sorted(options.items())), known)
    found = _exchanges.get(wanted)
    if found is None:
        found = _exchanges[wanted] = GradientExchange(choice, process_set, alike=alike, **options)
        for variable in variables:
            weakref.finalize(plain(variable), _drop, wanted).atexit = False
    return found


def _drop(wanted: tuple) -> None:
    exchange = _exchanges.pop(wanted, None)
    if exchange is not None:
        exchange.close()
