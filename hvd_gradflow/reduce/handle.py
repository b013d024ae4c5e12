"""What an asynchronous reduction returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_gradflow.errors import WaitTimeout
from hvd_gradflow.reduce.lifecycle import check_process


class Handle:
    """One reduction under way.

    Made by :meth:`Reducer.allreduce_async` and :meth:`GradientStream.submit`.
    """

    def __init__(
        self,
        engine,
        unit,
        name: str,
        collect: Callable[..., Any],
        after: Callable[[], None] | None = None,
        sent: Callable[[], Any] | None = None,
    ):
        self._engine = engine
        self._unit = unit  # of the engine, or a function that submits and returns it
        self._sent = sent  # returns that unit if it is submitted by now, else None
        self.name = name
        self._collect = collect
        self._after = after  # what follows from its being collected; may fail without the result being lost
        self._result: Any = None
        self._collected = False

    def then(self, finish: Callable[[Any], Any]) -> Handle:
        """Return this handle, whose result from now on is what `finish` makes of it."""
        collect = self._collect
        self._collect = lambda unit, **options: finish(collect(unit, **options))
        return self

    def done(self) -> bool:
        """Return True if `wait` would return, or raise, at once. Never blocks."""
        if self._collected:
            return True
        unit = self._unit
        if callable(unit):  # it may have left with others meanwhile
            unit = None if self._sent is None else self._sent()
        return unit is not None and unit.final

    def wait(self, timeout: float | None = None, **options: Any) -> Any:
        """Return the result; a second call returns the same again.

        Parameters
        ----------
        timeout : float, optional
            Seconds, until it is reduced; a policy may take more for its measurements, after the last gradient
            of a step. Without it the wait ends all the same: see docs/architecture.md, "Every wait ends".

        Raises
        ------
        WaitTimeout
            The reduction goes on; wait again.
        MismatchError, PeerError, WireError
            Ranks disagree, are missing or have failed; no reduction of this process works any more.
        """
        if self._collected:
            return self._result
        check_process()
        if callable(self._unit):
            self._unit = self._unit()
        unit = self._unit
        if not unit.final and not self._engine.wait(unit, timeout):
            raise WaitTimeout(f"tensor {self.name!r}: not reduced within {timeout:g} s")
        error = unit.exception
        if error is not None:
            raise error
        self._result = self._collect(unit, **options)
        self._collected = True
        unit.release()
        if self._after is not None:
            self._after()
        return self._result
