"""What the policy of one stream learns at the end of a round, and what it has to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_gradflow import events
from hvd_gradflow.reduce.agreement import rows
from hvd_gradflow.reduce.layout import TensorSpec

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec
    from hvd_gradflow.codec.policy import Policy
    from hvd_gradflow.reduce.handle import Handle
    from hvd_gradflow.reduce.reducer import Reducer


class Steering:
    """Hands on what all ranks know alike: statistics, and the sum of what the ranks report.

    Reports are exchanged in the background, from the end of one round to that of another, `reports_every`
    later: a rank's end of a round is there on all ranks, whether or not it has anything to report.

    Parameters
    ----------
    reducer : Reducer
    scope : str
        The stream's.
    policy : Policy
    """

    def __init__(self, reducer: Reducer, scope: str, policy: Policy) -> None:
        self._reducer, self._scope, self._policy = reducer, scope, policy
        self._begun = False
        self._rounds = 0
        self._pending: Handle | None = None

    def begin(self, specs: Sequence[TensorSpec], importance: str) -> dict[str, Codec]:
        """Start the policy; after a join, which is collective, with what any rank still knows."""
        known = self._policy.carried() if self._begun else ()
        table = self._policy.start(specs, importance, self._reducer.config.min_elements)
        self._begun, self._rounds, self._pending = True, 0, None
        if len(known):
            everyone = rows(self._reducer, f"{self._scope}.carried", known).wait()
            table = self._policy.resume(everyone[:, :-1].max(axis=0))
        return table

    def round_ended(
        self, statistics: Mapping[str, tuple[float, float]], step: int
    ) -> dict[str, Codec] | None:
        """Return a new table, or None; called at the end of a round, on all ranks at the same one."""
        table = None
        if self._policy.wants_statistics:
            table = self._policy.update(dict(sorted(statistics.items())))
        table = self._reported() or table
        for sentence, fields in self._policy.notes():
            self._tell(f"{self._scope}, step {step}: {sentence}", step, fields)
        return table

    def _reported(self) -> dict[str, Codec] | None:
        self._rounds += 1
        if not self._policy.reports_every or self._rounds % self._policy.reports_every:
            return None
        table = None
        if self._pending is not None:
            table = self._policy.heard(self._pending.wait()[:, :-1].sum(axis=0))
        self._pending = rows(self._reducer, f"{self._scope}.reports", self._policy.report())
        return table

    def _tell(self, message: str, step: int, fields: Mapping[str, Any]) -> None:
        kind, known = self._policy.name, {"scope": self._scope, "round": step, **fields}
        message = f"Compression.{kind} for {message}"
        if self._reducer.rank:
            events.emit(kind, message=message, **known)
        else:
            events.tell(kind, message, **known)
