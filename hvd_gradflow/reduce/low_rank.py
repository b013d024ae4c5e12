"""PowerSGD between nodes: two reductions of thin factors in place of one of a matrix.

T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD, NeurIPS 2019, algorithms 1 and 2; docs/architecture.md,
"Low rank".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.codec import get, low_rank
from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.errors import ConfigError, GradflowError
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.layout import DTYPES, Slot, TensorSpec, digest, factorizes

if TYPE_CHECKING:
    from hvd_gradflow.codec import Codec
    from hvd_gradflow.reduce.filling_low_rank import LowRankFilling
    from hvd_gradflow.reduce.reducer import Reducer

_SLICE = 1e-3  # seconds between two looks at other units while one is waited for
_AS_THEY_ARE = Factors(1.0, 1.0, 1.0, 1.0)
# Of all streams of this process, since ranks may wait for two optimizers in different orders; whoever changes
# them, or the list, holds the lock.
_under_way: list[Any] = []  # of TwoPhase
_lock = threading.RLock()


def carried(
    specs: Iterable[TensorSpec], table: Mapping[str, Codec], nodes: int, max_staleness: int
) -> dict[str, Codec]:
    """Return the codecs of a table as they are carried out: without low rank where it gains nothing.

    That is on one node, where nothing is encoded, and for shapes that the codec does not take.

    Raises
    ------
    ConfigError
        With staleness: a step begins with the factors that the one before it ended with.
    """
    slow = [name for name, codec in table.items() if factorizes(codec)]
    if not slow:
        return dict(table)
    if max_staleness:
        raise ConfigError(
            f"codec {table[slow[0]].name!r} with max_staleness={max_staleness}: a step begins with the"
            " factors and residuals that the step before it ended with; use max_staleness=0, or another codec"
        )
    shapes = {s.name: s.shape for s in specs}
    none = get("none")
    return {
        **table,
        **{n: none for n in slow if nodes == 1 or not table[n].takes(shapes[n])},  # type: ignore[index]
    }


@dataclass
class Basis:
    """The right factor from which a matrix's next step begins: (rank, columns) float32, the same on all."""

    q: np.ndarray
    seeds: tuple[int, int]
    steps: int = 0

    def learn(self, q: np.ndarray) -> None:
        """Take over the factor that a step ended with."""
        self.steps += 1
        self.q = low_rank.renewed(q, *self.seeds, self.steps)


class LowRank:
    """The units of one stream that are reduced in two phases, and what their next step begins with.

    The first phase is submitted with the last gradient of a bucket, the second as soon as somebody looks
    (:meth:`progress`) and finds the first one reduced. Who waits for one unit goes on with all: so ranks may
    wait in different orders, for those of several streams too.
    """

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self._bases: dict[str, Basis] = {}
        self._names: set[str] = set()

    def basis(self, name: str, rank: int, columns: int, seed: int) -> Basis:
        """Return the basis of a matrix; where there is none of this shape, a random one, by seed and name."""
        basis = self._bases.get(name)
        if basis is None or basis.q.shape != (rank, columns) or basis.seeds[0] != seed:
            seeds = seed, digest(name)
            q = low_rank.renewed(low_rank.drawn(rank, columns, *seeds))
            basis = self._bases[name] = Basis(q, seeds)
        return basis

    def restart(self) -> None:
        """Forget all bases: after a join, of whose steps some rank has missed some."""
        self._bases.clear()

    def names(self) -> list[str]:
        """Return the names of all units since the last call, which will not come again."""
        names, self._names = sorted(self._names), set()
        return names

    def start(
        self, filling: LowRankFilling, name: str, slots: Sequence[Slot], identity: tuple[str, int]
    ) -> TwoPhase:
        """Submit the left factors of some neighbours in a bucket."""
        with _lock:
            unit = TwoPhase(self, filling, name, slots, identity)
            _under_way.append(unit)
        return unit

    def submit(self, name: str, identity: tuple[str, int], values: np.ndarray, keep: Any) -> Any:
        """Hand the engine factors to add up over the ranks, in place."""
        self._names.add(name)
        return self.reducer.submit(
            name=name,
            identity=identity,
            codec=get("none"),
            dtype=DTYPES["float32"],
            elements=values.size,
            source=values.ctypes.data,
            target=values.ctypes.data,
            factors=_AS_THEY_ARE,
            keep=(values, keep),
        )

    def progress(self) -> None:
        """Begin the second phase of whatever has ended the first one; never blocks."""
        with _lock:
            for unit in _under_way:
                unit.advance()
            _under_way[:] = [unit for unit in _under_way if not unit.ended]

    def wait(self, unit: TwoPhase, timeout: float | None = None) -> bool:
        """Wait until a unit has ended; False if the time (seconds) ran out."""
        return self._wait(unit, timeout, lambda: unit.ended)

    def announce(self) -> None:
        """Wait until every second phase was submitted: this rank is about to join, and looks no more."""
        for unit in [unit for unit in _under_way if unit.driver is self]:
            self._wait(unit, None, lambda unit=unit: unit.ended or unit.second is not None)

    def _wait(self, unit: TwoPhase, timeout: float | None, enough: Any) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self.progress()
            if enough():
                return True
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            if any(other.second is None for other in list(_under_way) if other is not unit):
                left = _SLICE if left is None else min(left, _SLICE)
            self.reducer.engine.wait(unit.native, left)


class TwoPhase:
    """Some neighbours in a bucket on their way; to whom waits for it, like a unit of the engine.

    Attributes
    ----------
    ended : bool
        Whether the results, or an exception, are there.
    finite : bool
        Whether all results are finite.
    exception : GradflowError or None
        What it failed of.
    """

    def __init__(
        self,
        driver: LowRank,
        filling: LowRankFilling,
        name: str,
        slots: Sequence[Slot],
        identity: tuple[str, int],
    ) -> None:
        self.driver, self._filling, self._slots = driver, filling, tuple(slots)
        self._name, self._identity = name, identity
        self.ended = False
        self.finite = True
        self.exception: GradflowError | None = None
        left = filling.left(self._slots)
        reducer = driver.reducer
        # All owners of an element send it on each of two ways.
        self._share = 2.0 * (reducer.node_count - 1) / reducer.size
        self._spared = (sum(slot.size for slot in slots) * left.itemsize - left.nbytes) * self._share
        self.first = driver.submit(f"{name} (P)", identity, left, filling)
        self.second: Any = None

    @property
    def native(self) -> Any:
        """The engine's unit that is under way."""
        return self.first if self.second is None else self.second

    @property
    def final(self) -> bool:
        """Whether it has ended; looking takes it on."""
        self.advance()
        return self.ended

    def advance(self) -> None:
        """Go on as far as that is possible without waiting."""
        with _lock:
            while not self.ended and self.native.final:
                self.exception = self.native.exception
                if self.exception is not None:
                    self.ended = True
                    return
                with default_float_env():
                    self._go_on()

    def _go_on(self) -> None:
        if self.second is not None:
            self.finite = self._filling.finish(self._slots)
            self.ended = True
            self.driver.reducer.spared += self._spared
            return
        right = self._filling.right(self._slots)
        self._spared -= right.nbytes * self._share
        try:
            self.second = self.driver.submit(f"{self._name} (Q)", self._identity, right, self._filling)
        except GradflowError as error:  # the domain has failed meanwhile
            self.exception, self.ended = error, True

    def energies(self) -> list[tuple[float, float, float]]:
        """Return the tensors' statistics: there are none."""
        return []

    def release(self) -> None:
        """Let the engine's units go."""
        for unit in (self.first, self.second):
            if unit is not None:
                unit.release()
