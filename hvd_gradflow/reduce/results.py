"""Results: where a caller wants them, in which dtype, and that they stay finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device import arrays
from hvd_gradflow.errors import GradflowError
from hvd_gradflow.reduce.layout import DTYPES, Slot

if TYPE_CHECKING:
    from hvd_gradflow.reduce.filling import Filling

_NUMPY = {DTYPES["float32"]: np.float32, DTYPES["float64"]: np.float64}
HALVES = ("float16", "bfloat16")
# Finite numbers; the largest bfloat16 is 0x7f7f.
LARGEST = {DTYPES["float16"]: 65504.0, DTYPES["bfloat16"]: (2.0 - 2.0**-7) * 2.0**127}


def checked_out(out, source: arrays.ArrayView, name: str) -> arrays.ArrayView:
    """Return a view of `out`, if a result of the size and dtype of `source` can be written there."""
    target = arrays.view(out)
    if target.readonly or not target.contiguous:
        raise ValueError(f"tensor {name!r}: out must be contiguous and writable")
    if target.dtype != source.dtype or target.size != source.size:
        raise ValueError(
            f"tensor {name!r}: out has {target.size} elements of {target.dtype_name}, "
            f"expected {source.size} of {source.dtype_name}"
        )
    return target


def as_array(engine, result: np.ndarray, source: arrays.ArrayView) -> np.ndarray:
    """Return a float32 or float64 result in the shape and dtype of `source` (bfloat16: its bits)."""
    if source.dtype in _NUMPY and result.dtype == _NUMPY[source.dtype]:
        return result.reshape(source.shape)
    if source.dtype == DTYPES["float64"]:
        return result.astype(np.float64).reshape(source.shape)
    half = np.empty(source.size, np.uint16)
    engine.store(result.ctypes.data, half.ctypes.data, source.dtype, source.size)
    if source.dtype == DTYPES["float16"]:
        half = half.view(np.float16)
    return half.reshape(source.shape)


def saturate(values: np.ndarray, dtype: int) -> None:
    """Keep finite float32 values finite in float16 and bfloat16, in place.

    A code with few bits may return an average that is larger than any input: under ``log4`` 60000 becomes
    65536. What is not finite stays so.
    """
    largest = LARGEST.get(dtype)
    if largest is None or not values.size:
        return
    # Beside NaN, too, finite ones are kept finite: what becomes of an element is its own affair.
    if max(np.fmax.reduce(values), -np.fmin.reduce(values)) > largest:
        over = np.isfinite(values) & (np.abs(values) > largest)
        values[over] = np.copysign(np.float32(largest), values[over])


def written(engine: Any, filling: Filling, slot: Slot, out: Any) -> Any:
    """Write a reduced gradient to `out`, or to a new array; returns it.

    Raises
    ------
    GradflowError
        `out` is not of the tensor's size and dtype, or not contiguous.
    """
    spec, wide = slot.spec, filling.bucket.dtype == DTYPES["float64"]
    dtype, source = DTYPES[spec.dtype], filling.address(slot.begin)
    if out is None:
        if spec.dtype not in HALVES:
            return filling.values[slot.begin : slot.end].astype(spec.dtype).reshape(spec.shape)
        out = np.empty(spec.shape, np.float16 if spec.dtype == "float16" else np.uint16)
        address = out.ctypes.data
    else:
        target = arrays.view(out)
        if not target.contiguous or target.size != slot.size or target.dtype != dtype:
            raise GradflowError(
                f"tensor {spec.name!r}: out has {target.size} elements of {target.dtype_name} "
                f"(contiguous: {target.contiguous}), expected {spec.elements} of {spec.dtype}, contiguous"
            )
        address = target.address
    if wide:
        target.numpy().reshape(-1)[:] = filling.values[slot.begin : slot.end]
    elif source != address:
        engine.store(source, address, dtype, slot.size)
    return out
