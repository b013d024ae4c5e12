"""A bucket in a device's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.device.memory import TO_HOST
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.filling import Filling
from hvd_gradflow.reduce.floats import Floats
from hvd_gradflow.reduce.layout import Bucket, Slot
from hvd_gradflow.reduce.pieces import Pieces
from hvd_gradflow.reduce.place import Place
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.transform import HostTransform


class DeviceFilling(Filling):
    """As :class:`Filling`; the gradients enter it when they are sent, so they must stay until then.

    Parameters
    ----------
    place : Place
        The device.

    Without staleness results take the gradients' place. With it they are written where :meth:`give` is told,
    or returned as a float32 copy on the host.
    """

    place: Place

    def __init__(self, bucket: Bucket, residual: Floats | None, nodes: int, alone: bool, place: Place):
        self.place = place
        super().__init__(bucket, residual, nodes, alone, place)
        self._floats: Floats | None = None
        self._whole = Pieces(place, len(bucket.slots))
        self._single: dict[str, Pieces] = {}  # name -> for steps that lack others
        self._views: dict[str, ArrayView] = {}
        self._debts: dict[str, Any] = {}  # to be added once the gradient is there
        self._arrivals: dict[str, Callable[[int], None]] = {}  # what is to be done once the gradient is there
        self._changed: dict[str, tuple[Slot, int]] = {}  # in coefficients, as rows of so many columns
        self._under_way: dict[str, tuple[Pieces, int, int]] = {}  # name -> its pieces, their range

    def _room(self) -> Any:
        return self.place.zeros(self.bucket.elements)

    @property
    def floats(self) -> Floats:
        """The bucket."""
        if self._floats is None:
            self._floats = self.place.zeros(self.bucket.elements)
        return self._floats

    def address(self, element: int) -> int:
        return self.floats.address + 4 * element

    def look(self, slot: Slot, array: Any) -> ArrayView:
        self.arrays[slot.spec.name] = array
        return self.place.view(array)

    def take(
        self, engine: Any, slot: Slot, source: ArrayView, residuals: Residuals, factors: Factors
    ) -> bool:
        name = slot.spec.name
        self._views[name] = source
        owed = residuals.take(name)
        if owed is not None:
            self.owed[name] = owed
            self._debts[name] = owed * factors.fold
        return True  # the engine learns whether it is finite

    def terms(self, slots: Sequence[Slot]) -> dict[str, Any]:
        begin, end = slots[0].begin, slots[-1].end
        if len(slots) == len(self.bucket.slots):
            pieces = self._whole
        else:  # one by one
            name = slots[0].spec.name
            if name not in self._single:
                self._single[name] = Pieces(self.place, 1)
            pieces = self._single[name]
        pieces.gather(
            [(self.arrays[s.spec.name], self._views.pop(s.spec.name), s.begin - begin) for s in slots],
            self.address(begin),
            end - begin,
        )
        # As on the host, where such a gradient is read in place.
        looked = not self.bucket.in_place or bool(self._debts)
        flags = pieces.finite_ones(self.address(begin)) if self._arrivals else []
        for slot in slots:
            self._under_way[slot.spec.name] = pieces, begin, end
            debt = self._debts.pop(slot.spec.name, None)
            if debt is not None:
                pieces.add(debt, self.address(slot.begin))
        for slot, flag in zip(slots, flags):
            act = self._arrivals.pop(slot.spec.name, None)
            if act is not None:
                act(flag)
        if flags:
            pieces.entered()
        return {**super().terms(slots), "device": pieces.native(looked), "keep": (self, self.floats, pieces)}

    def arrive(self, slot: Slot, finite: Any, act: Callable[[Any], None]) -> None:
        self._arrivals[slot.spec.name] = act  # when it is sent; `finite` is not known yet

    def sample(self, slot: Slot, elements: int, finite: Any) -> np.ndarray | None:
        """Return a copy on the host; `finite` is where the device tells. Rare, so it waits."""
        device, said = self.place.device, np.zeros(1, np.int32)
        self.place.input.synchronize()
        device.copy(said.ctypes.data, finite, said.nbytes, TO_HOST)
        return self.floats[slot.begin : slot.begin + elements].numpy() if said[0] else None

    def change(self, host: HostTransform, slot: Slot, columns: int, finite: Any) -> None:
        codec: Any = self.bucket.codec
        self.place.forward.run(codec, columns, self.address(slot.begin), slot.size, False, finite)
        self._changed[slot.spec.name] = slot, columns

    def change_back(self, host: HostTransform, slot: Slot, columns: int, on: bool, finite: bool) -> None:
        """Undo it with all that was sent in one piece, since the first one that is given takes all along."""
        codec: Any = self.bucket.codec
        _, begin, end = self._under_way[slot.spec.name]
        with self.place.lock:
            changed = [c for c in self._changed.values() if begin <= c[0].begin < end]
            for other, rows in changed:
                where = self.address(other.begin)
                self.place.inverse.run(codec, rows, where, other.size, True, bool(finite))
                del self._changed[other.spec.name]
            if changed and not self.alone:  # then a result may be copied by itself
                self.place.output.synchronize()

    def give(self, engine: Any, slot: Slot, out: Any, saturated: bool) -> Any:
        name = slot.spec.name
        pieces, begin, end = self._under_way[name]
        array = self.arrays.get(name)
        if out is not None:
            self.place.write(self.address(slot.begin), slot.size, out, saturated)
        elif not self.alone:  # the gradient there is one of a later step by now
            out = self.floats[slot.begin : slot.end].numpy().reshape(slot.spec.shape)
        else:
            out = array
            if pieces.waiting and pieces.untouched:
                pieces.scatter(self.address(begin), end - begin, saturated)
            elif pieces.waiting:  # what was given already is the caller's
                self.place.write(self.address(slot.begin), slot.size, out, saturated)
        pieces.given()
        del self._under_way[name]
        self.arrays.pop(name, None)
        return out

    def let_go(self) -> None:
        for pieces, _, _ in self._under_way.values():
            pieces.let_go()
        super().let_go()
