"""What error feedback still owes, by name (docs/architecture.md, "Buckets, policy and residuals")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hvd_gradflow.errors import MismatchError
from hvd_gradflow.reduce.normalizer import Normalizer


class Residuals:
    """Residuals of one rank, float32, in units of the average.

    A rank *holds* the residual of what it encoded; what it merely *owes* (after a load, or a new bucket
    plan) it adds to its next input. For each name the sum over all ranks of both is what is missing.
    """

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}
        self._backups: dict[str, np.ndarray] = {}
        self._owed: dict[str, np.ndarray] = {}

    def of(self, name: str, elements: int) -> np.ndarray:
        """Return the array that the engine keeps up to date; zero pages cost no memory until used."""
        held = self._held.get(name)
        if held is None or held.size != elements:
            held = self._held[name] = np.zeros(elements, np.float32)
        return held

    def backup_of(self, name: str, elements: int) -> np.ndarray:
        """Return room of the same size, where the engine keeps what the residual was."""
        backup = self._backups.get(name)
        if backup is None or backup.size != elements:
            backup = self._backups[name] = np.empty(elements, np.float32)
        return backup

    def hold(self, name: str, array: np.ndarray) -> None:
        """Use this array, a part of a bucket's, for a name."""
        self._held[name] = array

    def in_gradient_units(self, normalizer: Normalizer) -> None:
        """Undo what a normalizer did to the residuals that this rank holds."""
        for name, held in self._held.items():
            normalizer.restore(name, held)

    def release(self) -> None:
        """Owe all that was held: the arrays are about to go away."""
        for name, held in self._held.items():
            if held.any():
                owed = self._owed.get(name)
                self._owed[name] = held.copy() if owed is None else owed + held
        self._held.clear()

    def owes(self, name: str) -> bool:
        """Return whether there is anything to :meth:`fold` in."""
        return name in self._owed

    def fold(self, name: str, values: np.ndarray, factor: float) -> np.ndarray | None:
        """Add what is owed to `values`, in place; returns what was added, in case it must be kept."""
        owed = self._owed.pop(name, None)
        if owed is not None:
            values += owed * np.float32(factor)
        return owed

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
                    mine += part
            handles[name] = reducer.allreduce_async(
                mine, f"{prefix}residual of {name}", op="sum", codec="none", out=mine
            )
        return {name: handle.wait() for name, handle in handles.items()}

    def replace(self, state: Mapping[str, Any], rank: int) -> None:
        """Start from a saved state: rank 0 owes it, nobody holds anything."""
        for held in self._held.values():
            held[:] = 0
        self._owed = {}
        for name, value in state.items():
            flat = np.array(value, np.float32).ravel()
            self._owed[name] = flat if rank == 0 else np.zeros(flat.size, np.float32)
