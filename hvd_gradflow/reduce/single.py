"""The allreduce of one array by its name, outside of any stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device import arrays
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.layout import DTYPES, TensorSpec, accumulator, feeds_back, identify, normalizes
from hvd_gradflow.reduce.results import as_array, checked_out, saturate

if TYPE_CHECKING:
    from hvd_gradflow.reduce.reducer import Reducer

_NUMPY = {DTYPES["float32"]: np.float32, DTYPES["float64"]: np.float64}


def start(
    reducer: Reducer,
    array: Any,
    name: str,
    *,
    op: str,
    codec: Any,
    prescale: float,
    postscale: float,
    out: Any,
) -> Handle:
    """Submit one array; see :meth:`Reducer.allreduce_async`."""
    reducer.admit(name, codec)
    source = arrays.contiguous(array)
    target = source if out is None else checked_out(out, source, name)
    kind = accumulator(source.dtype, codec)
    factors = Factors.of(op, reducer.size, codec.lossy, prescale, postscale)
    normalized = normalizes(codec) and reducer.node_count > 1  # on one node nothing is encoded
    finite, owed, staging, result = True, None, None, None
    if out is None or target.dtype != kind or normalized:
        result = np.empty(source.size, _NUMPY[kind])
        address = result.ctypes.data
    else:
        address = target.address
    read = source.address
    if source.dtype != kind or normalized or reducer.residuals.owes(name):
        staging = result if result is not None else np.empty(source.size, _NUMPY[kind])
        read = staging.ctypes.data
        finite = reducer.engine.load(source.address, source.dtype, read, source.size)
        owed = reducer.residuals.fold(name, staging, factors.fold) if finite else None
    residual: Any = None
    backup: Any = None
    unchecked = codec.lossy and reducer.node_count > 1
    if feeds_back(codec):
        residual = reducer.residuals.of(name, source.size)
        if unchecked:
            backup = reducer.residuals.backup_of(name, source.size)
    state = 0
    used, entered = codec, None
    if normalized:
        assert staging is not None  # a codec that normalizes loses bits, so there is one
        entered = reducer.normalizer.enter(name, staging, residual, finite)
        if entered.scale is None:
            used = codec(domain="energy")
        else:
            state = reducer.normalizer.digest([name], reducer.steps_of(name))
    else:
        reducer.normalizer.restore(name, residual)
    spec = TensorSpec(name, tuple(source.shape), source.dtype_name)
    unit = reducer.submit(
        name=name,
        identity=identify([spec], {name: codec}),
        codec=used,
        dtype=kind,
        elements=source.size,
        source=read,
        target=address,
        factors=factors,
        residual=residual,
        unchecked=unchecked,
        backup=backup,
        finite=finite,
        state=state,
        keep=(source, target, result, staging),
    )

    def collect(unit: Any) -> Any:
        if owed is not None and not unit.finite:
            reducer.residuals.keep(name, owed)
        if result is None:
            return out
        if entered is not None:
            reducer.normalizer.leave(name, result, unit.finite, entered)
        if op == "average" and codec.lossy:
            saturate(result, source.dtype)
        if out is None:
            return as_array(reducer.engine, result, source)
        reducer.engine.store(result.ctypes.data, target.address, target.dtype, target.size)
        return out

    return Handle(reducer.engine, unit, name, collect)
