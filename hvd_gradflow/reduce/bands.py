"""Gradients in wavelet coefficients on their way through a stream, where that makes their payloads smaller.

The transform is orthogonal and the same on all ranks, so that sums, energies and residuals are those of
coefficients from where a gradient enters its bucket to where the result leaves it; the engine knows only that
the first part of a unit, the lowest band, is urgent ("Two parts" in docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow import events
from hvd_gradflow.codec.wavelet import BEGIN, Wavelet
from hvd_gradflow.reduce.layout import SPLIT_ELEMENTS, Slot, transforms
from hvd_gradflow.reduce.transform import DeviceTransform, HostTransform

if TYPE_CHECKING:
    from hvd_gradflow.device.device import Device
    from hvd_gradflow.reduce.filling import Filling
    from hvd_gradflow.reduce.floats import Floats
    from hvd_gradflow.reduce.handle import Handle
    from hvd_gradflow.reduce.reducer import Reducer
    from hvd_gradflow.reduce.residuals import Residuals

SAMPLE = 1 << 16  # elements that a vote looks at
# Of what untransformed payloads cost: above it a tensor is transformed no more (BEGIN: below it, it is).
END = 0.99
_ALIGN = 32  # of deadzone's blocks


def due(round_number: int) -> bool:
    """Return whether the ranks vote at the end of this round: at 1, 4, 16, 64 and every 256th."""
    return round_number in (1, 4, 16, 64) or (round_number > 0 and round_number % 256 == 0)


class Bands:
    """Transforms the gradients of one stream, and keeps in mind which.

    Parameters
    ----------
    reducer : Reducer
    scope : str
        Of the stream.
    votes : bool
        Whether rounds end for all ranks alike; if not, codecs with ``where="auto"`` transform nothing.
    """

    def __init__(self, reducer: Reducer, scope: str, votes: bool) -> None:
        self._reducer, self._scope = reducer, scope
        self._votes = votes and reducer.node_count > 1  # on one node nothing is transformed
        self._round = 0
        self._on: dict[str, bool] = {}  # decided, with where="auto"
        self._scores: dict[str, tuple[float, float]] = {}  # of this round: plain, transformed
        self._inside: dict[str, tuple[Wavelet, int]] = {}  # in whose coefficients residuals are
        self._pending: tuple[list[str], Handle] | None = None  # a vote under way, and what it is about
        self._host = HostTransform()
        self._on_devices: dict[Device, DeviceTransform] = {}  # of residuals

    def restart(self) -> None:
        """Begin anew, transforming nothing (after a join): no rank can know what the others have decided."""
        self._round = 0
        self._on.clear()
        self._scores.clear()
        self._pending = None

    def enter(self, filling: Filling, slot: Slot, finite: bool) -> bool:
        """Transform a gradient in its bucket, when it is there, and return whether that is done."""
        codec: Any = filling.bucket.codec
        name = slot.spec.name
        columns = codec.columns(slot.spec.shape)
        votes = self._votes and codec.where == "auto" and due(self._round)
        on = codec.where == "always" or self._on.get(name, False)
        if filling.residual is not None:
            residual = filling.residual[slot.begin : slot.end]
            if self._inside.get(name) != ((codec, columns) if on else None):
                self.restore(name, residual)
                if on:
                    self._change(codec, columns, residual, False)
        if on:
            self._inside[name] = codec, columns

        def arrived(finite: Any) -> None:
            if votes:
                sample = filling.sample(slot, _sampled(codec, columns, slot.size), finite)
                self._scores[name] = (0.0, 0.0) if sample is None else self._score(codec, sample, columns)
            if on:
                filling.change(self._host, slot, columns, finite)

        if votes or on:
            filling.arrive(slot, finite, arrived)
        return on

    def leave(self, filling: Filling, slot: Slot, finite: bool) -> None:
        """Bring a reduced gradient back, in place, if it was transformed."""
        codec: Any = filling.bucket.codec
        on = filling.entered.pop(slot.spec.name, False)
        filling.change_back(self._host, slot, codec.columns(slot.spec.shape), on, finite)

    def restore(self, name: str, residual: np.ndarray | Floats | None) -> None:
        """Bring a residual back from coefficients, in place; nothing may be under way with it."""
        inside = self._inside.pop(name, None)
        if inside is not None and residual is not None:
            self._change(*inside, residual, True)

    def _change(self, codec: Wavelet, columns: int, residual: np.ndarray | Floats, inverse: bool) -> None:
        """Transform a residual in place; it is done on return."""
        if isinstance(residual, np.ndarray):
            if residual.any():
                self._host.run(codec, columns, residual, inverse, True)
            return
        device = residual.device
        if device not in self._on_devices:
            self._on_devices[device] = DeviceTransform(device, device.stream())
        there = self._on_devices[device]
        there.run(codec, columns, residual.address, residual.size, inverse)
        there.stream.synchronize()

    def parts(self, filling: Filling, slots: Iterable[Slot]) -> dict[str, Any]:
        """Return what :meth:`Reducer.submit` needs to know of the two parts of a unit, if it has two."""
        codec: Any = filling.bucket.codec
        first, *more = slots
        if more or first.size < SPLIT_ELEMENTS or not filling.entered.get(first.spec.name):
            return {}
        lowest = codec.lowest(first.size, codec.columns(first.spec.shape))
        split = max(lowest // _ALIGN, 1) * _ALIGN
        return {"split": split, "deadline": codec.details_deadline_ms / 1000}

    def round_ended(self, fillings: Iterable[Filling], residuals: Residuals) -> None:
        """Begin a vote where it is time, and act upon that of the round before; all ranks at this point.

        A round later all ranks have voted, whatever else each of them waits for.
        """
        number, self._round = self._round, self._round + 1
        if self._pending is not None:
            (names, handle), self._pending = self._pending, None
            self._decide(names, handle.wait(), residuals)
        if self._votes and due(number):
            self._vote(fillings)

    def _vote(self, fillings: Iterable[Filling]) -> None:
        names, scores = [], []
        for filling in fillings:
            codec: Any = filling.bucket.codec
            if not transforms(codec) or codec.where != "auto":
                continue
            for slot in filling.bucket.slots:
                names.append(slot.spec.name)
                scores.append(self._scores.get(slot.spec.name, (0.0, 0.0)))
        self._scores.clear()
        if names:
            self._pending = (
                names,
                self._reducer.allreduce_async(
                    np.array(scores, np.float64),
                    f"{self._scope}: what is transformed",
                    op="sum",
                    codec="none",
                ),
            )

    def _decide(self, names: Sequence[str], total: np.ndarray, residuals: Residuals) -> None:
        changed = {}
        for name, (plain, transformed) in zip(names, total.tolist()):
            was = self._on.get(name, False)
            self._on[name] = transformed < plain * (END if was else BEGIN)
            if self._on[name] != was:
                changed[name] = self._on[name]
                # Other elements, of other owners, are to send what is held in these.
                residuals.let_go(name, self)
        if changed:
            events.emit("transformed", scope=self._scope, changed=changed)

    def transformed(self) -> dict[str, bool]:
        """Return what was decided, by name, of tensors that are measured."""
        return dict(self._on)

    def _score(self, codec: Wavelet, sample: np.ndarray, columns: int) -> tuple[float, float]:
        """What a gradient costs, and what its coefficients would: in bytes, and in what is lost."""
        coefficients = codec.forward(np.ascontiguousarray(sample), columns, np.empty_like(sample))
        cost = codec.relative_cost(sample, coefficients)
        # All ranks count alike, however large their gradients are.
        return (0.0, 0.0) if cost is None else (1.0, cost)


def _sampled(codec: Wavelet, columns: int, elements: int) -> int:
    """Return how many of a gradient's elements a vote looks at: the first ones."""
    whole = 1 << codec.levels
    unit, least = (columns, whole) if columns else (whole, 1)
    return min(max(SAMPLE // unit, least) * unit, elements)
