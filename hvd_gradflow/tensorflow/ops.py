"""``allreduce`` and its relatives: Horovod's own, or our reducer where a compression of ours is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import horovod.tensorflow as stock
import numpy as np
import tensorflow as tf
from horovod.tensorflow import Average, ProcessSet, global_process_set

from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend.single import unnamed, without_feedback
from hvd_gradflow.tensorflow.carrier import carrier
from hvd_gradflow.tensorflow.choice import Choice, Compression, as_choice
from hvd_gradflow.tensorflow.graph import op_at, refuse_xla
from hvd_gradflow.tensorflow.on_device import default_device, given, room, site_of
from hvd_gradflow.tensorflow.session import session
from hvd_gradflow.tensorflow.sparse import SparseExchange
from hvd_gradflow.tensorflow.variables import plain, spec_of

_tickets = count(1)
_under_way: dict[int, tuple[list[Any], Any, list[Any]]] = {}


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Allreduce; as Horovod's, and differentiable as there.

    Parameters
    ----------
    tensor : tf.Tensor, tf.IndexedSlices, tf.Variable or keras.Variable
    average, device_dense, device_sparse, op, prescale_factor, postscale_factor, name, process_set
        As in Horovod.
    ignore_name_scope
        As in Horovod.
    compression : Choice, or one of Horovod's own compressors
        Of ours: the tensor travels compressed. With a `name`, what compression lost is kept and added to the
        next tensor of that name (error feedback).
    """
    op = stock.handle_average_backwards_compatibility(op, average)
    tensor = plain(tensor)
    choice, theirs = _carrier(compression, op, [tensor])
    if choice is None:
        return stock.allreduce(
            tensor, None, device_dense, device_sparse, theirs, op, prescale_factor, postscale_factor, name,
            process_set, ignore_name_scope,
        )  # fmt: skip
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise UnsupportedError(f"{choice!r}: no scale factors with tf.IndexedSlices")
        known = None if tensor.dense_shape is None else tf.get_static_value(tensor.dense_shape)
        rows = None if known is None else int(known[0])
        exchange = SparseExchange(choice, process_set, op == Average, Counter())
        return exchange.reduce(tensor, [rows], name or "allreduce")
    return _reduce(choice, [tensor], name, op, prescale_factor, postscale_factor, process_set)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Allreduce several tensors; as Horovod's, with the compressions of :func:`allreduce`."""
    op = stock.handle_average_backwards_compatibility(op, average)
    tensors = [plain(t) for t in tensors]
    choice, theirs = _carrier(compression, op, tensors)
    if choice is None or any(isinstance(t, tf.IndexedSlices) for t in tensors):
        if choice is not None:
            raise UnsupportedError(f"{choice!r}: grouped_allreduce takes dense tensors")
        return stock.grouped_allreduce(
            tensors, None, device_dense, device_sparse, theirs, op, prescale_factor, postscale_factor,
            process_set, ignore_name_scope, name,
        )  # fmt: skip
    return _reduce(choice, tensors, name, op, prescale_factor, postscale_factor, process_set)


def reducescatter(tensor: Any, device_dense: str = "", compression: Any = Compression.none, *args: Any,
                  **kwargs: Any) -> Any:  # fmt: skip
    """Horovod's reducescatter; of our compressions it takes ``none`` and ``fp16``, which Horovod has too."""
    return stock.reducescatter(plain(tensor), device_dense, _horovods(compression), *args, **kwargs)


def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "", compression: Any = Compression.none,
                          *args: Any, **kwargs: Any) -> list[Any]:  # fmt: skip
    """Horovod's grouped reducescatter, as :func:`reducescatter`."""
    found = [plain(t) for t in tensors]
    return stock.grouped_reducescatter(found, device_dense, _horovods(compression), *args, **kwargs)


def _horovods(compression: Any) -> Any:
    choice = as_choice(compression)
    theirs = compression if choice is None else choice.of_horovod()
    if theirs is None:
        raise UnsupportedError(
            f"reducescatter with {choice!r}: only allreduce is compressed; use .none or .fp16"
        )
    return theirs


def _carrier(compression: Any, op: int, tensors: Sequence[Any]) -> tuple[Choice | None, Any]:
    """Return our choice and None, or None and the compressor for Horovod's own operation."""
    choice = as_choice(compression)
    if choice is None:
        return None, compression
    if choice.lossless or not all(tf.as_dtype(t.dtype).is_floating for t in tensors):
        return None, stock.Compression.none
    return carrier(choice, op)


def _reduce(
    choice: Choice,
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    refuse_xla(f"{choice!r}")
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    if not process_set.included():
        return tensors
    named = name is not None
    stem = name
    if stem is None and not tf.executing_eagerly():
        # Where a function is traced once more on one rank, its names stay the same.
        stem = f"allreduce.{getattr(tf.compat.v1.get_default_graph(), 'name', 'graph')}.{tensors[0].name}"
    grouped = len(tensors) > 1
    site = site_of(t.device or default_device() for t in tensors)

    def both(*arrays: tf.Tensor) -> list[tf.Tensor]:
        def start(*values: Any) -> np.ndarray:
            with default_float_env():
                reducer = session.reducer_of(process_set, choice.route)
                place = None if site is None else reducer.place_of(site)
                first = unnamed(reducer) if stem is None else stem
                handles, results = [], []
                for i, value in enumerate(values):
                    full = f"{first}_{i + 1}of{len(values)}" if grouped else first
                    dtype = tf.as_dtype(value.dtype)
                    spec = spec_of(full, value.shape, dtype)
                    codec = choice.codec_for(spec, reducer.config.min_elements)
                    result, lent = room(site, place, spec.shape, dtype)
                    results.append(result)
                    handles.append(
                        reducer.allreduce_async(
                            given(site, place, value),
                            full,
                            op="average" if op == Average else "sum",
                            codec=codec if named else without_feedback(codec),
                            prescale=prescale,
                            postscale=postscale,
                            out=lent,
                        )
                    )
                ticket = next(_tickets)
                _under_way[ticket] = handles, values, results  # which the reducer reads until it is done
                return np.array(ticket, np.int64)

        def finish(ticket: Any) -> list[Any]:
            with default_float_env():
                handles, _, results = _under_way.pop(int(ticket))
                for handle in handles:
                    handle.wait()
                return results

        started = op_at(site, start, arrays, [tf.int64], "gradflow_start", [()])
        dtypes, shapes = [a.dtype for a in arrays], [a.shape for a in arrays]
        return op_at(site, finish, started, dtypes, "gradflow_wait", shapes)

    @tf.custom_gradient
    def differentiable(*arrays: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            return [
                stock.allreduce(u, op=op, prescale_factor=prescale, postscale_factor=postscale,
                                process_set=process_set)
                for u in upstream
            ]  # fmt: skip

        return both(*arrays), gradient

    return list(differentiable(*tensors))
