"""One bucket of a stream's plan in one lane, and how far it is filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device import arrays
from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.layout import DTYPES, Bucket, Slot, normalizes, transforms
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.results import saturate, written

if TYPE_CHECKING:
    from hvd_gradflow.reduce.place import Place
    from hvd_gradflow.reduce.reducer import Reducer
    from hvd_gradflow.reduce.transform import HostTransform


class Filling:
    """One bucket of a plan and how far it is filled in the step that its lane holds.

    Parameters
    ----------
    bucket : Bucket
    residual : ndarray or Floats, optional
        Of the bucket, float32: one for all lanes.
    nodes : int
        Nodes of the reducer.
    alone : bool
        Whether nothing of this bucket is under way while it is filled.
    place : Place, optional
        Where the gradients lie, if that is a device whose memory the bucket is not in: they are copied.
    """

    def __init__(
        self, bucket: Bucket, residual: Any, nodes: int, alone: bool, place: Place | None = None
    ) -> None:
        self.bucket = bucket
        self.place = place
        self.alone = alone
        self.normalizes = normalizes(bucket.codec) and nodes > 1  # on one node nothing is encoded
        self.transforms = transforms(bucket.codec) and nodes > 1
        self._values: np.ndarray | None = None
        self._address = 0
        self._ends = bucket.ends
        self._item = 8 if bucket.dtype == DTYPES["float64"] else 4
        self.residual = residual
        # Nobody looks at a gradient that is not copied; see Reducer.submit.
        self.unchecked = bucket.in_place and bucket.codec.lossy and nodes > 1
        self.backup = self._room() if self.unchecked and residual is not None else None
        converts = self.normalizes and residual is not None and not alone
        self.rescale = np.ones(bucket.elements, np.float32) if converts else None
        # Of the step; an entry goes when its tensor was waited for.
        self.present: dict[str, bool] = {}  # name -> its input is finite
        self.entered: dict[str, Any] = {}  # what they were divided by, or whether they were transformed
        self.owed: dict[str, np.ndarray] = {}
        self.units: dict[str, Any] = {}  # name -> the engine's unit that carries it
        self.lent: ArrayView | None = None  # the gradient itself, in place of `values`
        self.energies: tuple[Any, list] = (None, [])  # of the unit asked last
        self.arrays: dict[str, Any] = {}  # name -> the gradient on a device

    def _room(self) -> Any:
        return np.empty(self.bucket.elements, np.float32)

    @property
    def values(self) -> np.ndarray:
        """What is reduced, and then the result."""
        if self.lent is not None:
            return self.lent.numpy().reshape(-1)
        if self._values is None:
            wide = self.bucket.dtype == DTYPES["float64"]
            self._values = np.zeros(self.bucket.elements, np.float64 if wide else np.float32)
            self._address = self._values.ctypes.data
        return self._values

    def address(self, element: int) -> int:
        """Return where an element of `values` lies."""
        if self.lent is not None:
            return self.lent.address + 4 * element
        if self._values is None:
            _ = self.values  # makes the buffer
        return self._address + self._item * element

    def look(self, slot: Slot, array: Any) -> ArrayView:
        """Return a gradient as :meth:`take` wants it."""
        if self.place is None:
            return arrays.contiguous(array)
        self.arrays[slot.spec.name] = array
        return self.place.fetch(array)

    def take(
        self, engine: Any, slot: Slot, source: ArrayView, residuals: Residuals, factors: Factors
    ) -> bool:
        """Copy a gradient into its bucket, with what is owed; returns whether it is finite.

        Where the bucket has no memory of its own, and nothing is owed, the gradient itself stands for it.
        """
        name = slot.spec.name
        if self.bucket.in_place and not source.readonly and not residuals.owes(name):
            self.lent = source
            return True
        self.lent = None
        finite = True
        if self.bucket.dtype == DTYPES["float64"]:
            self.values[slot.begin : slot.end] = source.numpy().reshape(-1)
        else:
            finite = engine.load(source.address, source.dtype, self.address(slot.begin), source.size)
        behind = self._ends[slot.index]
        if behind > slot.end:  # of a block that was not finite all is NaN there
            self.values[slot.end : behind] = 0
        if finite and residuals.owes(name):
            owed = residuals.fold(name, self.values[slot.begin : slot.end], factors.fold)
            if owed is not None:
                self.owed[name] = owed
        return finite

    def arrive(self, slot: Slot, finite: Any, act: Callable[[Any], None]) -> None:
        """Call `act` with whether a gradient is finite once it is in its bucket: it is.

        What is told is for :meth:`sample` and :meth:`change`.
        """
        act(finite)

    def sample(self, slot: Slot, elements: int, finite: Any) -> np.ndarray | None:
        """Return the first elements of a gradient that has arrived; None where it is not finite."""
        return self.values[slot.begin : slot.begin + elements] if finite else None

    def change(self, host: HostTransform, slot: Slot, columns: int, finite: Any) -> None:
        """Put a gradient's wavelet coefficients in its place."""
        codec: Any = self.bucket.codec
        host.run(codec, columns, self.values[slot.begin : slot.end], False, finite)

    def change_back(self, host: HostTransform, slot: Slot, columns: int, on: bool, finite: bool) -> None:
        """Undo that with a result, where it was done (`on`); before it is given."""
        codec: Any = self.bucket.codec
        if on:
            host.run(codec, columns, self.values[slot.begin : slot.end], True, finite)

    def let_go(self) -> None:
        """Keep the gradients of this step no longer: they are in the bucket, and will not be written."""
        self.arrays.clear()

    def submit(self, reducer: Reducer, slots: Sequence[Slot], **terms: Any) -> Any:
        """Hand these neighbours to :meth:`Reducer.submit`; returns the unit."""
        return reducer.submit(**terms, **self.terms(slots))

    def waiter(self, engine: Any) -> Any:
        """Return whose ``wait(unit, timeout)`` is to be called for units of this bucket."""
        return engine

    def terms(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """Return what :meth:`Reducer.submit` needs to know of these neighbours' memory."""
        begin, end = slots[0].begin, slots[-1].end
        return {
            "source": self.address(begin),
            "target": self.address(begin),
            "residual": None if self.residual is None else self.residual[begin:end],
            "backup": self.backup,
            "rescale": None if self.rescale is None else self.rescale[begin:end],
            "keep": (self, self.lent),
        }

    def give(self, engine: Any, slot: Slot, out: Any, saturated: bool) -> Any:
        """Write a result to `out`, or to a new array, and return it; on a device, over the gradient.

        Parameters
        ----------
        saturated : bool
            Whether finite results stay finite in float16 and bfloat16.

        Raises
        ------
        GradflowError
            `out` is not of the tensor's size and dtype, or not contiguous.
        """
        if saturated:
            saturate(self.values[slot.begin : slot.end], DTYPES[slot.spec.dtype])
        if self.place is None:
            return written(engine, self, slot, out)
        name, result = slot.spec.name, written(engine, self, slot, None)
        if out is None and not self.alone:  # the gradient there is one of a later step by now
            return result
        target = self.arrays[name] if out is None else out
        self.place.put(result, target)
        self.arrays.pop(name, None)
        return target
