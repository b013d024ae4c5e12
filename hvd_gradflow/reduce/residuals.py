"""What error feedback still owes, by name (docs/architecture.md, "Buckets, policy and residuals")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hvd_gradflow.errors import MismatchError
from hvd_gradflow.reduce.floats import Floats
from hvd_gradflow.reduce.normalizer import Normalizer

if TYPE_CHECKING:
    from hvd_gradflow.reduce.bands import Bands
    from hvd_gradflow.reduce.place import Place

Held: TypeAlias = np.ndarray | Floats  # of the host, or of a device


def on_host(array: Held) -> np.ndarray:
    """Return the array itself, or a copy of one on a device."""
    return array if isinstance(array, np.ndarray) else array.numpy()


def zeros(elements: int, place: Place | None) -> Held:
    """Return new zeros; on the host their pages cost no memory until they are used."""
    return np.zeros(elements, np.float32) if place is None else place.zeros(elements)


def lies(array: Held, place: Place | None) -> bool:
    """Return whether an array lies there; without a place, on the host."""
    if isinstance(array, np.ndarray):
        return place is None
    return place is not None and array.device is place.device


def write(array: Held, values: np.ndarray) -> None:
    """Replace all elements."""
    if isinstance(array, np.ndarray):
        array[:] = values
    else:
        array.write(values)


class Residuals:
    """Residuals of one rank, float32, in units of the average.

    A rank *holds* the residual of what it encoded; what it merely *owes* (after a load, or a new bucket
    plan) it adds to its next input. For each name the sum over all ranks of both is what is missing.
    """

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._backups: dict[str, Held] = {}
        self._owed: dict[str, np.ndarray] = {}

    def of(self, name: str, elements: int, place: Place | None = None) -> Held:
        """Return the array that the engine keeps up to date.

        With a `place` it is on that device; what was held elsewhere moves there.
        """
        held = self._held.get(name)
        if held is not None and held.size == elements and lies(held, place):
            return held
        moved = None if held is None or held.size != elements else on_host(held)
        made = zeros(elements, place)
        if moved is not None:
            write(made, moved)
        self._held[name] = made
        return made

    def backup_of(self, name: str, elements: int, place: Place | None = None) -> Held:
        """Return room of the same size, where the engine keeps what the residual was."""
        backup = self._backups.get(name)
        if backup is None or backup.size != elements or not lies(backup, place):
            backup = np.empty(elements, np.float32) if place is None else place.zeros(elements)
            self._backups[name] = backup
        return backup

    def hold(self, name: str, array: Held) -> None:
        """Use this array, a part of a bucket's, for a name."""
        self._held[name] = array

    def in_gradient_units(self, *converters: Normalizer | Bands) -> None:
        """Undo what these did to the residuals that this rank holds."""
        for name, held in self._held.items():
            for converter in converters:
                converter.restore(name, held)

    def release(self) -> None:
        """Owe all that was held: the arrays are about to go away."""
        for name, array in self._held.items():
            held = on_host(array)
            if held.any():
                self.keep(name, held.copy())
        self._held.clear()

    def let_go(self, name: str, converter: Bands) -> None:
        """Owe what is held of one name, in gradient units; nothing of it may be under way."""
        held = self._held.get(name)
        if held is None:
            return
        converter.restore(name, held)
        owed = on_host(held)
        if owed.any():
            self.keep(name, owed.copy())
            write(held, np.zeros(held.size, np.float32))

    def owes(self, name: str) -> bool:
        """Return whether there is anything to :meth:`fold` in."""
        return name in self._owed

    def fold(self, name: str, values: np.ndarray, factor: float) -> np.ndarray | None:
        """Add what is owed to `values`, in place; returns what was added, in case it must be kept."""
        owed = self.take(name)
        if owed is not None:
            values += owed * np.float32(factor)
        return owed

    def take(self, name: str) -> np.ndarray | None:
        """Return what is owed, which the caller adds to an input, and owe it no more."""
        return self._owed.pop(name, None)

    def keep(self, name: str, owed: np.ndarray) -> None:
        """Owe again what was folded into a reduction that came to nothing."""
        more = self._owed.get(name)
        self._owed[name] = owed if more is None else owed + more

    def sizes(self) -> dict[str, int]:
        """Return the elements of every name there is anything of."""
        return {name: array.size for name, array in (*self._owed.items(), *self._held.items())}

    def sizes_everywhere(self, reducer) -> dict[str, int]:
        """Return the elements of every name on any rank: one that joined may never have met a name."""
        sizes: dict[str, int] = {}
        for theirs in reducer.exchange(self.sizes(), "residual_state()"):
            for name, elements in theirs.items():
                if sizes.setdefault(name, elements) != elements:
                    raise MismatchError(
                        f"residual of {name!r}: {elements} elements on one rank, {sizes[name]} on another"
                    )
        return sizes

    def total(self, reducer, sizes: Mapping[str, int], prefix: str = "") -> dict[str, np.ndarray]:
        """Return the sum over the ranks for these names; collective, the same names on all ranks."""
        handles = {}
        for name, elements in sorted(sizes.items()):
            mine = np.zeros(elements, np.float32)
            for part in (self._held.get(name), self._owed.get(name)):
                if part is not None:
                    mine += on_host(part)
            handles[name] = reducer.allreduce_async(
                mine, f"{prefix}residual of {name}", op="sum", codec="none", out=mine
            )
        return {name: handle.wait() for name, handle in handles.items()}

    def replace(self, state: Mapping[str, Any], rank: int) -> None:
        """Start from a saved state: rank 0 owes it, nobody holds anything."""
        for held in self._held.values():
            write(held, np.zeros(held.size, np.float32))
        self._owed = {}
        for name, value in state.items():
            flat = np.array(value, np.float32).ravel()
            self._owed[name] = flat if rank == 0 else np.zeros(flat.size, np.float32)
