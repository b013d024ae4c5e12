"""The allreduce of one array on a device, outside of any stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_gradflow.reduce import single
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.layout import TensorSpec, accumulator, feeds_back, identify
from hvd_gradflow.reduce.place import Place
from hvd_gradflow.reduce.results import as_array, saturate

if TYPE_CHECKING:
    from hvd_gradflow.reduce.reducer import Reducer


def start_on(place: Place) -> Callable[..., Handle]:
    """Return what submits one array that lies there; see :meth:`Reducer.allreduce_async`."""
    return partial(_start, place)


def _start(
    place: Place,
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
    reducer.admit(name, codec)
    view = place.view(array)
    if out is not None:
        target = place.view(out)
        if target.size != view.size or target.dtype != view.dtype or target.readonly:
            raise ValueError(
                f"tensor {name!r}: out has {target.size} elements of {target.dtype_name}"
                f"{' and is read-only' if target.readonly else ''}, expected {view.size} of"
                f" {view.dtype_name}"
            )
    kind = accumulator(view.dtype, codec)
    if not place.takes(codec, [view.dtype]):
        terms = {"op": op, "codec": codec, "prescale": prescale, "postscale": postscale}
        return _start_by_host(place, reducer, array, name, out, terms)
    factors = Factors.of(op, reducer.size, codec.lossy, prescale, postscale)
    values, pieces = place.room(view.size)
    pieces.gather([(array, view, 0)], values.address, view.size)
    owed = reducer.residuals.take(name)
    if owed is not None:
        pieces.add(owed * factors.fold, values.address)
    residual, backup = None, None
    if feeds_back(codec):
        residual = reducer.residuals.of(name, view.size, place)
        if codec.lossy:
            backup = reducer.residuals.backup_of(name, view.size, place)
    spec = TensorSpec(name, tuple(view.shape), view.dtype_name)
    unit = reducer.submit(
        name=name,
        identity=identify([spec], {name: codec}),
        codec=codec,
        dtype=kind,
        elements=view.size,
        source=values.address,
        target=values.address,
        factors=factors,
        residual=residual,
        unchecked=codec.lossy,
        backup=backup,
        keep=(array, out, values, pieces),
        device=pieces.native(looked=view.dtype != kind or owed is not None),
    )

    def collect(unit: Any) -> Any:
        if owed is not None and not unit.finite:
            reducer.residuals.keep(name, owed)
        if out is not None:
            place.write(values.address, values.size, out, saturated=op == "average" and codec.lossy)
            result = out
        else:
            floats = values.numpy()
            if op == "average" and codec.lossy:
                saturate(floats, view.dtype)
            result = as_array(reducer.engine, floats, view)
        place.return_room(values, pieces)
        return result

    return Handle(reducer.engine, unit, name, collect)


def _start_by_host(
    place: Place, reducer: Reducer, array: Any, name: str, out: Any, terms: dict[str, Any]
) -> Handle:
    """Where the device has no kernels for it, or ranks share a node: a copy is reduced on the host."""
    handle = single.start(reducer, place.fetch(array), name, out=None, **terms)
    if out is None:
        return handle

    def collect(result: Any) -> Any:
        place.put(result, out)
        return out

    return handle.then(collect)
