"""The dense gradients of one list of variables, for the reducer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend.delay import Delay
from hvd_gradflow.frontend.session import Session
from hvd_gradflow.reduce import TensorSpec


@dataclass(frozen=True)
class Terms:
    """How the gradients of one tape or optimizer are reduced.

    Attributes
    ----------
    session : Session
        Horovod.
    choice : Choice
        How gradients travel.
    process_set : ProcessSet
        Who takes part.
    average : bool
        Whether the result is the average or the sum.
    predivide : float
        Horovod's ``gradient_predivide_factor``.
    importance : {"energy", "coordinate"}
        How the optimizer weighs errors.
    kind : str
        Names the streams, with a number.
    max_staleness : int
        Steps between a gradient and its use.
    alike : mapping of str to object
        What else all ranks must have set alike, by name.
    """

    session: Session
    choice: Any
    process_set: Any
    average: bool
    predivide: float = 1.0
    importance: str = "energy"
    kind: str = "tape"
    max_staleness: int = 0
    alike: Mapping[str, object] = field(default_factory=dict)


class HostExchange:
    """One stream of the reducer, opened at the first gradient.

    May be used from any thread, from one at a time. Every method computes as the main thread does, whatever
    the float environment of its caller.

    Parameters
    ----------
    terms : Terms
        This rank takes part.
    specs : sequence of TensorSpec
        In the order of the forward pass, alike on all ranks of the process set.
    at : object with ``__dlpack_device__``, optional
        Where all gradients lie, if not in the host's memory.
    """

    def __init__(self, terms: Terms, specs: Sequence[TensorSpec], at: Any = None) -> None:
        self.terms = terms
        self.specs = tuple(specs)
        self._generation = -1
        self._reducer: Any = None
        self._stream: Any = None
        self.at = at
        self._place: Any = None
        self._handles: dict[str, Any] = {}
        self._delay: Delay[dict[str, Any]] = Delay(terms.max_staleness)
        self._moments: dict[str, Any] = {}
        self._loaded: dict[str, np.ndarray] = {}

    @property
    def is_open(self) -> bool:
        """Whether a gradient came, since Horovod was started."""
        return self._generation == self.terms.session.generation

    @property
    def reducer(self) -> Any:
        """The reducer of the process set; collective at the first use."""
        self._connect()
        return self._reducer

    @property
    def stream(self) -> Any:
        """The stream; every rank of the process set must open its streams in the same order."""
        self._connect()
        return self._stream

    @property
    def place(self) -> Any:
        """The device of the reducer's that takes the gradients, or None: they are to be on the host."""
        self._connect()
        return self._place

    def _connect(self) -> None:
        if self.is_open:
            return
        terms, session = self.terms, self.terms.session
        session.require(repr(terms.choice))
        self._handles = {}
        self._delay = Delay(terms.max_staleness)
        self._reducer, scope = session.reducer_and_scope(terms.process_set, terms.choice.route, terms.kind)
        self._place = None if self.at is None else self._reducer.place_of(self.at)
        self._stream = self._reducer.stream(
            self.specs,
            codec=terms.choice.policy(),
            scope=scope,
            op="average" if terms.average else "sum",
            prescale=1.0 / terms.predivide,
            postscale=terms.predivide,
            importance=terms.importance,
            second_moment=lambda name: self._moments.pop(name, None),
            max_staleness=terms.max_staleness,
            place=self._place,
            alike=terms.alike,
        )
        self._generation = session.generation
        if self._loaded:
            self._stream.load_residual_state(self._loaded)
            self._loaded = {}

    def submit(self, name: str, gradient: Any, second_moment: Any = None) -> None:
        """Hand over one gradient: any array in host memory, which is copied, or one on :attr:`place`.

        That must stay as it is until it was waited for; with staleness, until :meth:`end_step`.
        """
        with default_float_env():
            if second_moment is not None:
                self._moments[name] = second_moment
            self._handles[name] = self.stream.submit(name, gradient)

    def end_step(self) -> None:
        """Call once all gradients of a step were submitted, before the first is waited for.

        With staleness, what is waited for then are the gradients of `max_staleness` steps ago.

        Raises
        ------
        UnsupportedError
            Those were of other variables: some would be lost.
        """
        if not self.terms.max_staleness:
            return
        names = self._handles.keys()
        with default_float_env():
            self.stream.advance()
        due = self._delay.push(self._handles, self.terms.session.joins(self._reducer))
        if due is not None and due.keys() != names:
            raise UnsupportedError(
                f"max_staleness={self.terms.max_staleness}: {min(due.keys() ^ names)!r} has a gradient in"
                " some steps and none in others, and what is due would be lost; give zeros in its place, as"
                " with unconnected_gradients=tf.UnconnectedGradients.ZERO"
            )
        self._handles = dict.fromkeys(names) if due is None else due

    def wait(self, name: str, out: Any) -> Any:
        """Wait for one reduced gradient and write it to `out` (contiguous, of its size and dtype, there too).

        Zeros in the first steps with staleness, when there is none yet.
        """
        handle = self._handles.pop(name)
        if handle is not None:
            with default_float_env():
                handle.wait(out=out)
        elif self._place is None:
            out[...] = 0
        else:
            view = self._place.view(out)
            self._place.put(np.zeros(view.size * view.itemsize, np.uint8), out)
        return out

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return the error-feedback residuals by name (float32, summed over the ranks); collective."""
        return {name: np.array(value, np.float32) for name, value in self.stream.residual_state().items()}

    def load_residual_state(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`residual_state` gave, on all ranks; their number may be another.

        Before the first gradient it is kept until then.
        """
        self._loaded = {n: np.asarray(v, np.float32) for n, v in state.items()}
        if self.is_open:
            self._stream.load_residual_state(self._loaded)
            self._loaded = {}

    def close(self) -> None:
        """Let the reducer forget the stream."""
        if self.is_open and not self._reducer.closed:
            self._stream.close()
        self._generation = -1
