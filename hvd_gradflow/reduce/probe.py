"""What codecs cost on a reducer, by trying them (docs/architecture.md, "Measured choice")."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.codec.policy_base import FixedPolicy
from hvd_gradflow.codec.profile import Fit, Profile, fit
from hvd_gradflow.reduce.agreement import rows
from hvd_gradflow.reduce.layout import TensorSpec

if TYPE_CHECKING:
    from hvd_gradflow.reduce.reducer import Reducer

SMALL = 64 << 10  # bytes: at least one chunk for each of two nodes
LARGE = (256 << 10, 1 << 20, 4 << 20)
GROWTH = 4  # from one of these to the next
# The large size is the first that takes so many seconds, and so many times what the small one does (else the
# time for a byte would be lost in what comes on top), unless the next one is expected to take too long.
TELLING, CONTRAST, LONGEST = 0.01, 4.0, 0.4
THIN = 0.2  # seconds of the small size, above which there is no other
SMALL_TURNS = 3  # of the small size in a turn, where it is as quick as this:
QUICK = 0.05
MOST_TURNS = 7
ENOUGH = 1.2  # seconds after which no further turn begins, where times are precise
AT_MOST = 2.5  # and where they are not
PRECISE = 0.1  # standard error of the large size's time
WARM_UP = 0.15  # seconds of a turn, below which the first is left out
BLOCK = 256
ADDED_UP = ("wire_bytes", "wire_bytes_uncompressed", "payloads", "units", "late", "missed")
SPREAD = 1.0  # standard deviation of the logarithm of a block's scale: neighbours in a gradient are alike


class Prober:
    """Keeps the profile of one reducer, and measures it; every method is called on all ranks alike."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self.profile: Profile | None = None
        self.traffic: Counter[str] = Counter()  # of the engine's counters, what went into probes
        self._count = 0
        self._ended = 0.0
        self._patience = 1.0

    def covering(self, codecs: Sequence[Any]) -> Profile | None:
        """Return a profile of (at least) these codecs; None if a rank has joined."""
        if self.profile is None or not self.profile.covers(codecs):
            known = [] if self.profile is None else list(self.profile.fits)
            self._measure([*codecs, *(c for c in known if c not in codecs)])
        return self.profile if self.profile is not None and self.profile.covers(codecs) else None

    def leave(self, overhead: float) -> float:
        """Return how long ago the last probe was, by this rank's clock, over what must lie between two."""
        if self.profile is None:
            return 0.0
        return (time.monotonic() - self._ended) * overhead / (self._patience * self.profile.cost)

    def again(self) -> bool:
        """Measure the same codecs once more; False, with everything as before, if a rank has joined."""
        return self.profile is not None and self._measure(list(self.profile.fits))

    def changed(self, something: bool) -> None:
        """Tell whether the last probe was of use: the next one comes later if it was not."""
        self._patience = 1.0 if something else 2.0 * self._patience

    def _measure(self, codecs: Sequence[Any]) -> bool:
        engine, domain = self._reducer.engine, self._reducer.domain
        before = engine.traffic(domain)
        found = measure(self._reducer, codecs, f"probe {self._count}")
        self._ended = time.monotonic()
        after = engine.traffic(domain)
        self.traffic.update({key: after[key] - before[key] for key in ADDED_UP})
        if found is not None:  # else a rank that has joined does not count this one either
            self.profile = found
            self._count += 1
        return found is not None


def measure(reducer: Reducer, codecs: Sequence[Any], label: str) -> Profile | None:
    """Time reductions of two sizes with each codec; collective.

    Parameters
    ----------
    reducer : Reducer
    codecs : sequence of Codec
        The first is the one that is tried first, to choose the sizes.
    label : str
        New on this reducer.

    Returns
    -------
    Profile or None
        The same on all ranks; None if a rank has joined, which knows nothing of this.
    """
    turns = _Turns(reducer, label)
    try:
        small = [turns.trial(codec, SMALL) for codec in codecs]
        size = turns.large_size(small[0])
        if size is None:
            return None
        large = [turns.trial(codec, size) for codec in codecs] if size > SMALL else []
        one_turn = [*small * (SMALL_TURNS if turns.small_seconds < QUICK else 1), *large]
        times: dict[Any, dict[int, list[float]]] = {codec: {SMALL: [], size: []} for codec in codecs}
        fits: dict[Any, Fit] = {}
        taken, cold = 0, True
        while taken < MOST_TURNS:
            if taken and turns.spent > (ENOUGH if _certain(fits, size) else AT_MOST):
                break
            found = turns.take(one_turn)
            if found is None:
                return None
            if cold and sum(found) < WARM_UP:
                cold = False
                continue
            cold, taken = False, taken + 1
            for trial, seconds in zip(one_turn, found, strict=True):
                times[trial.codec][trial.size].append(seconds)
            fits = {codec: fit(by_size) for codec, by_size in times.items()}
        return Profile(fits, turns.spent, f"{reducer.size} ranks on {reducer.node_count} nodes")
    finally:
        turns.close()


class _Turns:
    """Trials, and what every rank knows of their times."""

    def __init__(self, reducer: Reducer, label: str) -> None:
        self._reducer, self._label = reducer, label
        self._began = time.perf_counter()
        self._values = gradient(reducer.rank, LARGE[-1] // 4 + MOST_TURNS * BLOCK)
        self._trials: list[_Trial] = []
        self.spent = 0.0  # seconds so far, of the slowest rank
        self.small_seconds = 0.0

    def trial(self, codec: Any, size: int) -> _Trial:
        scope = f"{self._label}.{len(self._trials)}"
        self._trials.append(_Trial(self._reducer, codec, size, scope, self._values))
        return self._trials[-1]

    def large_size(self, small: _Trial) -> int | None:
        """Return the larger size in bytes, by trials of `small`'s codec; None if a rank has joined."""
        first = self.take([small, small])
        if first is None:
            return None
        self.small_seconds = first[1]
        if self.small_seconds > THIN:
            return SMALL
        for size in LARGE:
            found = self.take([self.trial(small.codec, size)])
            if found is None:
                return None
            if found[0] >= max(TELLING, CONTRAST * self.small_seconds) or GROWTH * found[0] > LONGEST:
                break
        return size

    def take(self, trials: Sequence[_Trial]) -> list[float] | None:
        """Run some trials; returns the seconds of the slowest rank for each, or None if a rank has joined."""
        mine = [trial.seconds() for trial in trials]
        mine.append(time.perf_counter() - self._began)
        everyone = rows(self._reducer, f"{self._label}.times", mine).wait()
        if everyone[:, -1].sum() < self._reducer.size:
            return None
        *slowest, self.spent = map(float, everyone[:, :-1].max(axis=0))
        return slowest

    def close(self) -> None:
        for trial in self._trials:
            trial.close()


def _certain(fits: Mapping[Any, Fit], size: int) -> bool:
    return all(f.error(size) <= PRECISE * f.seconds(size) for f in fits.values())


def gradient(rank: int, n: int) -> np.ndarray:
    """Return something like a gradient (float32, n elements): Laplace, of a scale that differs by block.

    In part the same on all ranks, as gradients of one loss are. What ``deadzone`` sends depends on it.
    """
    shared, own = np.random.default_rng(0), np.random.default_rng(rank + 1)
    scale = np.exp(SPREAD * shared.standard_normal(-(-n // BLOCK))).repeat(BLOCK)[:n]
    values = shared.laplace(size=n) + own.laplace(size=n)
    return (1e-3 * scale * values).astype(np.float32)


class _Trial:
    """Reductions of one size with one codec, by a stream of its own."""

    def __init__(self, reducer: Reducer, codec: Any, size: int, scope: str, values: np.ndarray) -> None:
        self.codec, self.size = codec, size
        self._values, self._taken = values, 0
        self._out = np.empty(size // 4, np.float32)
        self._stream = reducer.stream(
            [TensorSpec("probe", (size // 4,), "float32", "dense")], _Whatever(codec), scope=scope
        )
        self._stream.recorder = None  # these are no gradients

    def seconds(self) -> float:
        """Reduce the next part of the values."""
        at = self._taken % MOST_TURNS * BLOCK  # not twice the same: error feedback would send what it owes
        self._taken += 1
        began = time.perf_counter()
        self._stream.submit("probe", self._values[at : at + self.size // 4]).wait(out=self._out)
        return time.perf_counter() - began

    def close(self) -> None:
        self._stream.close()


class _Whatever(FixedPolicy):
    """One codec, however small the tensor."""

    def fresh(self) -> _Whatever:
        return self

    def start(self, specs: Any, importance: str, min_elements: int) -> dict[str, Any]:
        return super().start(specs, importance, 0)
