"""A bucket in a device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.filling import Filling
from hvd_gradflow.reduce.floats import Floats
from hvd_gradflow.reduce.layout import Bucket, Slot
from hvd_gradflow.reduce.pieces import Pieces
from hvd_gradflow.reduce.place import Place
from hvd_gradflow.reduce.residuals import Residuals


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
        self.transforms = False  # it is for the host to do
        self._floats: Floats | None = None
        self._whole = Pieces(place, len(bucket.slots))
        self._single: dict[str, Pieces] = {}  # name -> for steps that lack others
        self._views: dict[str, ArrayView] = {}
        self._debts: dict[str, Any] = {}  # to be added once the gradient is there
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
        for slot in slots:
            self._under_way[slot.spec.name] = pieces, begin, end
            debt = self._debts.pop(slot.spec.name, None)
            if debt is not None:
                pieces.add(debt, self.address(slot.begin))
        return {**super().terms(slots), "device": pieces.native(looked), "keep": (self, self.floats, pieces)}

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
