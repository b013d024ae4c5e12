"""Gives a policy that chooses by measured times what it needs, for one stream.

What is agreed when is in docs/architecture.md, "Measured choice".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_gradflow import events
from hvd_gradflow.codec.profile import Profile
from hvd_gradflow.reduce.agreement import rows
from hvd_gradflow.reduce.layout import TensorSpec, cut
from hvd_gradflow.reduce.pace import Pace, Window, busy

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec
    from hvd_gradflow.codec.policy import Policy
    from hvd_gradflow.reduce.handle import Handle
    from hvd_gradflow.reduce.reducer import Reducer

RENEW = (
    10.0  # times the least distance of two probes, after which to measure again though nothing has changed
)
SHOWN = 16 << 20  # bytes, for which a decision's predicted times are told


class Tuner:
    """Measures for one stream, and watches whether what was measured still holds.

    Parameters
    ----------
    reducer : Reducer
    scope : str
        The stream's.
    specs : sequence of TensorSpec
        Its tensors.
    policy : Policy
        Has started.
    table : dict of str to Codec
        What it started with, which needs no measurement.
    in_place : bool
        As of the stream.
    """

    def __init__(
        self,
        reducer: Reducer,
        scope: str,
        specs: Sequence[TensorSpec],
        policy: Policy,
        table: dict[str, Codec],
        in_place: bool,
    ) -> None:
        self._reducer, self._scope, self._specs, self._policy = reducer, scope, specs, policy
        self._table, self._in_place = table, in_place
        self._pace = Pace(policy.window, policy.drift)
        self._profile: Profile | None = None
        self._pending: Handle | None = None
        self._rounds = 0
        self._intervals: dict[int, tuple[float, float]] = {}  # of the round's units, by id
        self._predicted = 0.0

    def opened(self) -> dict[str, Codec]:
        """Return the first table; collective."""
        if self._reducer.node_count > 1 and len(self._codecs()) > 1:
            self._reducer.prober.covering(self._codecs())
            self._decide("")
        elif self._reducer.node_count == 1 and self._reducer.size > 1:
            self._tell("all ranks are on one node, where nothing is encoded", [])
        return self._table

    def restarted(self) -> dict[str, Codec]:
        """Return the table after all ranks joined: what was measured before holds."""
        self._pending = None
        self._intervals.clear()
        self._predicted = 0.0
        self._pace.restart()
        if self._reducer.prober.profile is not self._profile:
            self._decide("")
        return self._table

    def _codecs(self) -> list[Any]:
        choices = [ladder for ladder in self._policy.ladders().values() if len(ladder) > 1]
        return list(dict.fromkeys(codec for ladder in choices for codec in ladder))

    # -- rounds ------------------------------------------------------------------------------------

    def saw(self, unit: Any, codec: Codec, elements: int) -> None:
        """Take in a tensor of so many elements whose unit has ended."""
        fit = None if self._profile is None else self._profile.fits.get(codec)
        if fit is None:
            return
        if id(unit) not in self._intervals:
            self._intervals[id(unit)] = unit.interval
            self._predicted += fit.latency
        self._predicted += fit.per_byte * 4 * elements

    def round_ended(self) -> dict[str, Any] | None:
        """Return a new table, or None; called at the end of a round, on all ranks at the same one."""
        self._rounds += 1
        intervals, self._intervals = list(self._intervals.values()), {}
        predicted, self._predicted = self._predicted, 0.0
        prober = self._reducer.prober
        if self._profile is None:
            return None
        why = self._agreed()
        if why and prober.again():
            table = self._decide(f"step {self._rounds}: {why}; ")
            prober.changed(table is not None)
            return table
        if prober.profile is not self._profile:  # another stream of this reducer asked for it
            return self._decide(f"step {self._rounds}: measured anew; ")
        window = self._pace.add(busy(intervals), predicted)
        if window is not None:
            leave = prober.leave(self._policy.overhead)
            self._pending = rows(self._reducer, f"{self._scope}.pace", [window.pace, window.seconds, leave])
        return None

    def _agreed(self) -> str:
        """Return why to measure again, if all ranks are there and time allows; else nothing."""
        if self._pending is None:
            return ""
        everyone = self._pending.wait()
        self._pending = None
        if everyone[:, -1].sum() < self._reducer.size:
            return ""
        pace, seconds = everyone[:, :2].max(axis=0)
        factor = self._pace.changed(Window(float(pace), float(seconds)))
        leave = everyone[0, 2]
        if factor is not None and leave >= 1.0:
            return f"the exchange takes {factor:.2f} times as long as at first"
        if not self._policy.certain and leave >= 1.0:
            return "measured anew, as nothing was certain"
        return "long since measured" if leave >= RENEW and self._compresses() else ""

    def _compresses(self) -> bool:
        """Whether something goes with fewer bits than it might: a faster link need not show in its time."""
        return any(self._table[name] != ladder[0] for name, ladder in self._policy.ladders().items())

    # -- decisions ---------------------------------------------------------------------------------

    def _decide(self, reason: str) -> dict[str, Any] | None:
        """Choose by the reducer's profile; returns the table if it is another one."""
        profile = self._reducer.prober.profile
        if profile is None or not profile.covers(self._codecs()):
            return None
        first = self._profile is None
        self._profile = profile
        self._pace.restart()
        buckets = self._buckets()
        table = self._policy.choose(profile, buckets)
        changed, self._table = table != self._table, table
        if first or changed:
            self._tell(reason + _measured(profile, self._codecs()), buckets)
        return table if changed else None

    def _buckets(self) -> list[list[str]]:
        """The tensors that would travel together, were all that have the same choice to make the same one."""
        ladders = self._policy.ladders()
        limit, buckets = self._reducer.config.bucket_mib * 2**20, []
        for ladder in dict.fromkeys(map(tuple, ladders.values())):
            alike = [s for s in self._specs if tuple(ladders[s.name]) == ladder]
            for bucket in cut(alike, {s.name: ladder[0] for s in alike}, limit, "", self._in_place):
                buckets.append([slot.spec.name for slot in bucket.slots])
        return buckets

    def _tell(self, why: str, buckets: Sequence[Sequence[str]]) -> None:
        if self._reducer.rank:
            return
        name = self._policy.name
        chosen = _chosen(self._table, self._specs, buckets)
        events.tell(
            name,
            f"Compression.{name} for {self._scope}: {why}; chosen: {chosen}",
            scope=self._scope,
            round=self._rounds,
            codecs={n: codec.name for n, codec in self._table.items()},
        )


class Undecided:
    """Stands where a codec would: ranks compare what they may choose from."""

    def __init__(self, policy: Any, importance: str) -> None:
        self._config = {**policy.get_config(), "importance": importance}

    def get_config(self) -> dict[str, Any]:
        """Return the policy's options, and what it goes by."""
        return self._config


def _rounded(value: float, digits: int) -> str:
    """A number with so many digits that count, and never as 1.4e+02."""
    return f"{float(f'{value:.{digits}g}'):.15g}"


def _measured(profile: Profile, codecs: Sequence[Any]) -> str:
    """What was measured, in words."""
    times = ", ".join(f"{c.name} {_rounded(1e3 * profile.seconds(c, SHOWN), 3)}" for c in codecs)
    fit = profile.fits[codecs[0]]
    rate = f" and {_rounded(1e-6 / fit.per_byte, 3)} MB/s" if fit.per_byte > 0.0 else ""
    return (
        f"{profile.where}, {codecs[0].name} {_rounded(1e3 * fit.latency, 2)} ms{rate}; "
        f"{SHOWN >> 20} MiB are predicted to take (ms) {times}"
    )


def _chosen(table: dict[str, Any], specs: Sequence[TensorSpec], buckets: Sequence[Sequence[str]]) -> str:
    """What was chosen, for how much, in words."""
    sizes = {s.name: 4 * s.elements for s in specs}
    parts = []
    for codec in dict.fromkeys(table.values()):
        names = [name for name, chosen in table.items() if chosen == codec]
        count = sum(1 for bucket in buckets if table[bucket[0]] == codec)
        where = f" in {count} bucket{'s' if count > 1 else ''}" if count else ""
        span = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        size = sum(sizes[name] for name in names)
        parts.append((size, f"{codec.name} for {_rounded(size / 1e6, 3)} MB{where} ({span})"))
    return ", ".join(text for _, text in sorted(parts, reverse=True))
