"""Tensors on a device, on their way into a bucket and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.device.memory import PIECE, TO_DEVICE, TO_HOST, Memory, piece_table

if TYPE_CHECKING:
    from hvd_gradflow.reduce.place import Place


class Pieces:
    """Some tensors on their way into a bucket, and their results on the way out.

    Nothing waits for the copy in: the engine does, before it announces the unit.

    Parameters
    ----------
    place : Place
    most : int
        Tensors at most.
    """

    def __init__(self, place: Place, most: int) -> None:
        self.place, self._most = place, max(most, 1)
        device = place.device
        self._table = device.allocate_host(self._most * PIECE.itemsize)
        self._on_device = device.allocate(self._most * PIECE.itemsize)
        self._flags = device.allocate(16)
        self._finite = device.allocate_host(16)
        self._event = device.event()
        self._arrays: list[Any] = []
        self._views: list[ArrayView] = []
        self._offsets: list[int] = []
        self._expected = 0  # results that nobody was given yet
        self._each: Memory | None = None  # of each tensor, whether it is finite
        self._ones: Memory | None = None

    def native(self, looked: bool) -> tuple[int, int, int, int]:
        """Return what the engine is told of them, and of the device.

        `looked`: whether it says in its announcement if they are finite. Where the host would not look either
        (units that are unchecked), the results tell; so a step with NaN has the same bits on both.
        """
        device = self.place.device
        finite = self._finite.address if looked else 0
        return device.api_address, device.index, self._event.handle, finite

    @property
    def waiting(self) -> bool:
        """Whether results were not written over the tensors yet."""
        return bool(self._views)

    @property
    def untouched(self) -> bool:
        """Whether no result was given yet."""
        return self._expected == len(self._offsets)

    def given(self) -> None:
        """Count one result as given; with the last one the tensors are let go of."""
        self._expected -= 1
        if self._expected <= 0:
            self.let_go()

    def let_go(self) -> None:
        """Keep the tensors no longer: their results are in place, or will never be put there."""
        self._arrays, self._views = [], []

    def gather(self, pieces: Sequence[tuple[Any, ArrayView, int]], target: int, elements: int) -> None:
        """Copy tensors into a bucket, converted to float32, zeros between them; in one kernel.

        Parameters
        ----------
        pieces : sequence of (array, ArrayView, int)
            Each with the element of the bucket where it begins, ascending. They must stay as they are until
            their reduction has ended.
        target : int
            Address of the bucket.
        elements : int
            Its size.
        """
        device, stream = self.place.device, self.place.input
        self._arrays = [array for array, _, _ in pieces]
        self._views = [view for _, view, _ in pieces]
        self._offsets = [offset for _, _, offset in pieces]
        self._expected = len(pieces)
        table = piece_table([(view, offset) for _, view, offset in pieces])
        self._table.numpy(PIECE)[: table.size] = table
        device.copy(self._on_device.address, self._table.address, table.nbytes, TO_DEVICE, stream)
        device.gather(self._on_device.address, table.size, target, elements, self._flags.address, stream)
        device.copy(self._finite.address, self._flags.address, 4, TO_HOST, stream)
        self._event.record(stream)

    def entered(self) -> None:
        """Let the engine wait for all that is on the stream by now, too."""
        self._event.record(self.place.input)

    def finite_ones(self, target: int) -> list[int]:
        """Return where it is told of each tensor by itself whether it is finite: an int32 on the device.

        Parameters
        ----------
        target : int
            Address of the bucket, which they were gathered in; nothing was added yet.
        """
        count, device, stream = len(self._views), self.place.device, self.place.input
        if count == 1:
            return [self._flags.address]
        if self._each is None or self._ones is None:
            self._each, self._ones = device.allocate(4 * self._most), device.allocate_host(4 * self._most)
            self._ones.numpy(np.int32)[:] = 1
        device.copy(self._each.address, self._ones.address, 4 * count, TO_DEVICE, stream)
        flags = [self._each.address + 4 * i for i in range(count)]
        for flag, view, offset in zip(flags, self._views, self._offsets):
            device.library.sum(0, target + 4 * offset, 0, 1.0, view.size, flag, stream.handle)
        return flags

    def add(self, values: np.ndarray, target: int) -> None:
        """Add values of the host to a part of the bucket, behind the copy in.

        Rare (after a change of plan, or a load), so it waits until they are there.
        """
        device, stream = self.place.device, self.place.input
        more = self.place.floats(values.size)
        more.write(values)
        device.library.sum(target, target, more.address, 1.0, values.size, 0, stream.handle)
        self._event.record(stream)
        stream.synchronize()

    def scatter(self, source: int, elements: int, saturated: bool) -> None:
        """Write the results of a bucket over the tensors, in one kernel; they are there on return.

        Parameters
        ----------
        source : int
            Address of the bucket.
        elements : int
            Its size.
        saturated : bool
            Whether finite results stay finite in float16 and bfloat16.
        """
        place = self.place
        with place.lock:
            place.follow(self._arrays[0])
            tensors = list(zip(self._views, self._offsets, strict=True))
            place.scatter(source, elements, tensors, self._on_device.address, saturated)
        self.let_go()
