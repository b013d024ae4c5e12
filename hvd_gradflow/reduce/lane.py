"""The buffers of the steps under way, a lane for each (docs/architecture.md, "Bounded staleness")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_gradflow.errors import GradflowError
from hvd_gradflow.reduce.filling import Filling
from hvd_gradflow.reduce.filling_device import DeviceFilling
from hvd_gradflow.reduce.filling_low_rank import LowRankFilling
from hvd_gradflow.reduce.layout import DTYPES, Bucket, Slot, factorizes, feeds_back
from hvd_gradflow.reduce.residuals import Residuals, zeros

if TYPE_CHECKING:
    from hvd_gradflow.reduce.low_rank import LowRank
    from hvd_gradflow.reduce.place import Place
    from hvd_gradflow.reduce.reducer import Reducer


class Lane:
    """One filling for each bucket of a plan.

    Attributes
    ----------
    plan : int
        Number of the plan.
    outstanding : set of str
        Tensors that were submitted and not waited for.
    sent : bool
        Whether the step has ended: nothing more will be submitted in it.
    flushed : bool
        Whether all that was submitted has been sent.
    statistics : dict
        Name to the energies of gradient and residual, of what was waited for.
    """

    def __init__(self, fillings: Sequence[Filling], plan: int) -> None:
        self.fillings = tuple(fillings)
        self.plan = plan
        self.outstanding: set[str] = set()
        self.sent = False
        self.flushed = False
        self.statistics: dict[str, tuple[float, float]] = {}

    def note(self, filling: Filling, slot: Slot, unit: Any) -> None:
        """Keep the energies of a tensor that was waited for, if there are any."""
        if filling.energies[0] is not unit:
            filling.energies = (unit, unit.energies())
        energies = filling.energies[1]
        if not energies:
            return
        gradient, residual, _ = energies[slot.index if len(energies) > 1 else 0]
        if gradient > 0:
            self.statistics[slot.spec.name] = (gradient, residual)


class Lanes:
    """All lanes of one plan; the residual of a bucket is theirs in common.

    Parameters
    ----------
    buckets : sequence of Bucket
    residuals : Residuals
    reducer : Reducer
    count : int
        One more than the steps that may be under way beside the present one.
    plan : int
        Number of the plan.
    place : Place, optional
        Where the gradients lie, if that is a device.
    low_rank : LowRank, optional
        What takes the buckets of a codec of low rank.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        residuals: Residuals,
        reducer: Reducer,
        count: int,
        plan: int,
        place: Place | None = None,
        low_rank: LowRank | None = None,
    ) -> None:
        self._residuals, self._engine = residuals, reducer.engine
        pairs = []
        for bucket in buckets:
            dtypes = {DTYPES[slot.spec.dtype] for slot in bucket.slots}
            there = place if place is not None and place.takes(bucket.codec, dtypes) else None
            residual = zeros(bucket.elements, there) if feeds_back(bucket.codec) else None
            pairs.append((bucket, residual, there))
        for bucket, residual, _ in pairs:
            if residual is not None:
                for slot in bucket.slots:
                    residuals.hold(slot.spec.name, residual[slot.begin : slot.end])
        nodes = reducer.node_count

        def filling(bucket: Bucket, residual: Any, there: Place | None) -> Filling:
            if low_rank is not None and factorizes(bucket.codec):
                return LowRankFilling(bucket, residual, nodes, place, low_rank)
            if there is None:
                return Filling(bucket, residual, nodes, count == 1, place)
            return DeviceFilling(bucket, residual, nodes, count == 1, there)

        self._lanes = [Lane([filling(*pair) for pair in pairs], plan) for _ in range(count)]
        self._step = 0
        self._whole: dict[str, bool] = {}  # bucket -> it went in one piece when it was sent last
        self.places = {slot.spec.name: (i, slot) for i, bucket in enumerate(buckets) for slot in bucket.slots}

    @property
    def count(self) -> int:
        """Number of lanes."""
        return len(self._lanes)

    @property
    def present(self) -> Lane:
        """The lane of the present step; it may still hold an earlier one."""
        return self._lanes[self._step % self.count]

    def take(self, name: str) -> Lane:
        """Return the present lane for one more tensor.

        Raises
        ------
        GradflowError
            The tensor is under way in this step, or there are too many steps under way.
        """
        lane = self.present
        if lane.sent and lane.outstanding:
            raise GradflowError(
                f"tensor {name!r}: {self.count} steps are under way, and max_staleness is {self.count - 1}; "
                f"wait for {min(lane.outstanding)!r} of the first of them"
            )
        lane.sent = False
        if name in lane.outstanding:
            what = "wait for it first" if self.count == 1 else "advance() begins another step"
            raise GradflowError(f"tensor {name!r} is already under way in this step; {what}")
        return lane

    def advance(self) -> Lane:
        """End the present step; returns its lane."""
        lane = self.present
        lane.sent = True
        self._step += 1
        return lane

    def drain(self) -> None:
        """Wait until all that was sent is reduced here; raises what it failed of."""
        for lane in self._lanes:
            for filling in lane.fillings:
                self._drain(filling)

    def follow(self, filling: Filling, whole: bool) -> None:
        """Wait for what is under way of a bucket, if what is sent now would not follow it by itself.

        Versions of one name do; a bucket that went in one piece, and now does not, has other names.
        """
        bucket = filling.bucket
        if self.count == 1 or self._whole.setdefault(bucket.name, whole) == whole:
            return
        self._whole[bucket.name] = whole
        for lane in self._lanes:
            for other in lane.fillings:
                if other.bucket is bucket:
                    self._drain(other)

    def _drain(self, filling: Filling) -> None:
        for name, unit in filling.units.items():
            filling.waiter(self._engine).wait(unit)
            if unit.exception is not None:
                raise unit.exception
            self.settle(filling, name, unit)

    def settle(self, filling: Filling, name: str, unit: Any) -> None:
        """Owe again what was folded into a reduction that has come to nothing."""
        owed = filling.owed.pop(name, None)
        if owed is not None and not unit.finite:
            self._residuals.keep(name, owed)
