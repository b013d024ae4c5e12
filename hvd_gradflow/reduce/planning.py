"""Which codec each gradient of one stream has, and the buckets that follow, laid out anew as that changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from hvd_gradflow import events
from hvd_gradflow.reduce.agreement import announce
from hvd_gradflow.reduce.lane import Lane, Lanes
from hvd_gradflow.reduce.layout import Slot, TensorSpec, cut, feeds_back, identify, identify_plan, plan_name
from hvd_gradflow.reduce.low_rank import LowRank, carried
from hvd_gradflow.reduce.place import Place
from hvd_gradflow.reduce.ratio import RatioWatch
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.steering import Steering
from hvd_gradflow.reduce.tuner import Tuner, Undecided

if TYPE_CHECKING:
    from hvd_gradflow.codec.policy import Policy
    from hvd_gradflow.reduce.handle import Handle
    from hvd_gradflow.reduce.reducer import Reducer


@dataclass(frozen=True)
class Terms:
    """What a stream was opened with; as the arguments of :class:`GradientStream`."""

    specs: tuple[TensorSpec, ...]
    importance: str
    max_staleness: int
    in_place: bool
    place: Place | None
    alike: Mapping[str, object]


class Planning:
    """The plans of one stream, one after another.

    Parameters
    ----------
    reducer : Reducer
    scope : str
        The stream's.
    terms : Terms
    policy : Policy
        Of this stream alone.
    residuals : Residuals
        In which plans hold what is owed.
    low_rank : LowRank
        What takes the buckets of a codec of low rank.
    settle : callable
        Brings the residuals into the gradients' own units, before buckets change.

    Attributes
    ----------
    number : int
        Of plans that were announced so far.
    table : dict of str to Codec
        The codec of each tensor.
    lanes : Lanes
        The buffers of the present plan.
    """

    def __init__(
        self,
        reducer: Reducer,
        scope: str,
        terms: Terms,
        policy: Policy,
        residuals: Residuals,
        low_rank: LowRank,
        settle: Callable[[], None],
    ) -> None:
        self._reducer, self._scope, self._terms, self._policy = reducer, scope, terms, policy
        self._residuals, self._low_rank, self._settle = residuals, low_rank, settle
        self._steering = Steering(reducer, scope, policy)
        self._ratio = RatioWatch(reducer, scope, policy)
        self._tuner: Tuner | None = None
        self._next_table: dict[str, Any] | None = None  # for the next step
        self._identities: dict[str, tuple[str, int]] = {}  # unit name -> manifest and digest, in this plan
        self.number = 0
        self.table: dict[str, Any] = {}
        self.lanes = Lanes((), residuals, reducer, terms.max_staleness + 1, 0)

    @property
    def feeds_back(self) -> bool:
        """Whether any codec that a tensor may have keeps what it loses."""
        return any(feeds_back(c) for c in chain(self.table.values(), *self._policy.ladders().values()))

    def begin(self) -> None:
        """Choose the first table and lay it out; after a join, with nothing under way, anew. Collective."""
        terms, policy = self._terms, self._policy
        self._next_table = None
        begun = self.number > 0
        self.table = self._steering.begin(terms.specs, terms.importance)
        if not begun and (policy.ladders() or policy.compared):
            # Ranks whose policies differ must not begin to measure, or to agree on what they report.
            self._compare(dict.fromkeys(self.table, Undecided(policy, terms.importance))).wait()
        if self._tuner is not None:
            self.table = self._tuner.restarted()
        elif policy.ladders():
            self._tuner = Tuner(self._reducer, self._scope, terms.specs, policy, self.table, terms.in_place)
            self.table = self._tuner.opened()
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay out the buckets anew, for the present table."""
        terms, reducer = self._terms, self._reducer
        table = carried(terms.specs, self.table, reducer.node_count, terms.max_staleness)
        self.lanes.drain()
        self._settle()
        self._residuals.release()
        self.forget()
        self._ratio.restart()
        label = f"{self._scope}.{self.number}."
        self._compare(self.table)
        buckets = cut(terms.specs, table, reducer.config.bucket_mib * 2**20, label, terms.in_place)
        lanes = terms.max_staleness + 1
        self.lanes = Lanes(buckets, self._residuals, reducer, lanes, self.number, terms.place, self._low_rank)

    def _compare(self, codecs: Mapping[str, Any]) -> Handle:
        """Let all ranks compare what they registered; one that differs learns it by name."""
        terms, plan = self._terms, plan_name(self._scope, self.number)
        self.number += 1
        self._identities[plan] = identify_plan(
            terms.specs,
            codecs,
            max_staleness=terms.max_staleness,
            in_place=terms.in_place,
            **terms.alike,
        )
        return announce(self._reducer, plan, self._identities[plan])

    def identity(self, name: str, slots: Sequence[Slot]) -> tuple[str, int]:
        """Return the manifest of a unit's tensors, and its digest."""
        if name not in self._identities:
            self._identities[name] = identify([s.spec for s in slots], self.table)
        return self._identities[name]

    @property
    def counts_payloads(self) -> bool:
        """Whether the bytes of every unit's payloads are asked for, on all ranks alike."""
        return self._ratio.asks

    def forget(self) -> None:
        """Let the reducer forget the units of this plan."""
        self._reducer.forget([*self._identities, *self._low_rank.names()])
        self._identities.clear()

    # -- rounds ------------------------------------------------------------------------------------

    def saw(self, unit: Any, codec: Any, elements: int) -> None:
        """Take in a tensor of so many elements whose unit has ended."""
        self._ratio.saw(unit, codec, elements)
        # With staleness the link is never idle at the end of a round: what was measured first holds.
        if self._tuner is not None and not self._terms.max_staleness:
            self._tuner.saw(unit, codec, elements)

    def is_present(self, lane: Lane) -> bool:
        """Return whether a lane's codecs are those that the next step will have."""
        return lane.plan == self.number and self._next_table is None

    def round_ended(self, statistics: Mapping[str, tuple[float, float]], rounds: int) -> None:
        """Ask the policy, and plan anew if it moved tensors; on all ranks at the same round's end."""
        self._ratio.round_ended()
        table = self._steering.round_ended(statistics, rounds)
        if self._tuner is not None and not self._terms.max_staleness:
            table = self._tuner.round_ended() or table
        if table is None or table == self.table:
            return
        moved = {n: c.name for n, c in table.items() if c != self.table[n]}
        events.emit("codecs", scope=self._scope, moved=moved)
        if self._terms.max_staleness:
            self._next_table = dict(table)  # the present step may have begun, in another order elsewhere
        else:
            self.table = dict(table)
            self._lay_out()

    def step_ended(self) -> None:
        """Plan anew, if tensors were moved while the step was under way; with staleness only."""
        if self._next_table is not None:
            self.table, self._next_table = self._next_table, None
            self._lay_out()
