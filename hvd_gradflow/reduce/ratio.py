"""Whether the payloads of a stream become as small as was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_gradflow import events

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec
    from hvd_gradflow.codec.policy import Policy
    from hvd_gradflow.codec.policy_base import Promise
    from hvd_gradflow.reduce.reducer import Reducer

WINDOW = 50  # rounds whose bytes are added up; in the first ones steps adapt, and error feedback fills
MISSED = 2  # windows one after the other in which a ratio must be missed
LEAVE = 1.25  # times the bytes asked for: a ratio holds on average, within some ten percent


class RatioWatch:
    """Adds up the payloads of a stream whose policy promises a ratio, and says once if it is out of reach.

    Parameters
    ----------
    reducer : Reducer
    scope : str
        The stream's.
    policy : Policy
        Only one with a :meth:`Policy.promise` is watched, and only by the first of several ranks.

    Attributes
    ----------
    asks : bool
        Whether bytes of payloads are needed: the same on all ranks.
    """

    def __init__(self, reducer: Reducer, scope: str, policy: Policy) -> None:
        self._scope, self._promise = scope, policy.promise() if reducer.node_count > 1 else None
        self.asks = self._promise is not None
        self._on = self.asks and reducer.rank == 0
        self._legs = 2.0 * (reducer.node_count - 1)  # as often a gradient would travel as it is
        self._units: dict[int, Any] = {}  # of the round, by id
        self._elements, self._plain, self._known = 0, 0, True  # of the round
        self.restart()

    def restart(self) -> None:
        """Begin anew: with other codecs, steps adapt again."""
        self._rounds = self._missed = 0
        self._sent = self._of = 0.0
        self._next_round()

    def _next_round(self) -> None:
        self._units.clear()
        self._elements = self._plain = 0
        self._known = True

    def saw(self, unit: Any, codec: Codec, elements: int) -> None:
        """Take in a tensor of so many elements whose unit has ended."""
        if not self._on:
            return
        if codec.lossy:
            self._units[id(unit)] = unit
            self._elements += elements
            self._known = self._known and unit.payload_bytes > 0
        elif self._promise is not None and self._promise.everything:
            self._plain += elements

    def round_ended(self) -> None:
        """Look at what the round took; says so once, where a ratio was missed for long."""
        if not self._on or self._promise is None:
            return
        if self._known and self._elements:
            sent = sum(unit.payload_bytes for unit in self._units.values())
            self._sent += sent / self._legs + 4.0 * self._plain
            self._of += 4.0 * (self._elements + self._plain)
            self._rounds += 1
        self._next_round()
        if self._rounds < WINDOW:
            return
        found = self._of / self._sent
        self._missed = self._missed + 1 if found * LEAVE < self._promise.ratio else 0
        if self._missed == MISSED:
            self._on = False
            self._tell(self._promise, found)
        self._rounds, self._sent, self._of = 0, 0.0, 0.0

    def _tell(self, promise: Promise, found: float) -> None:
        reached = f"{found:.0f}" if found >= 10 else f"{found:.1f}"
        events.warn(
            "Compression.%s(target_ratio=%g) for %s: out of reach: the payloads of the last %d steps are %s"
            " times smaller than the gradients; headers, tables and what error feedback owes take no less."
            " Ask for %s at most, or let more elements share a header (GRADFLOW_BUCKET_MIB,"
            " GRADFLOW_CHUNK_KIB)",
            promise.name,
            promise.ratio,
            self._scope,
            WINDOW,
            reached,
            reached,
        )
