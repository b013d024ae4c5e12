"""GradientStream: the gradients of one optimizer, in buckets, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.device import arrays
from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.errors import ConfigError, GradflowError, unknown_name
from hvd_gradflow.reduce.bands import Bands
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.filling import Filling
from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.lane import Lane, Lanes
from hvd_gradflow.reduce.layout import DTYPES, Bucket, Slot, TensorSpec
from hvd_gradflow.reduce.low_rank import LowRank
from hvd_gradflow.reduce.normalizer import Normalizer
from hvd_gradflow.reduce.place import Place
from hvd_gradflow.reduce.planning import Planning, Terms
from hvd_gradflow.reduce.reducer import Reducer
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.topology import tell_of_one_node

_IMPORTANCE = ("energy", "coordinate")


class GradientStream:
    """The gradients of one optimizer; made by :meth:`Reducer.stream` on all ranks alike.

    Parameters
    ----------
    reducer : Reducer
    specs : sequence of TensorSpec
        In the order in which the forward pass uses them.
    codec : str, Codec or Policy
        What to encode with; a policy may choose for each tensor and change its mind between steps.
    scope : str
        Distinguishes streams of one reducer, in names and in residual states.
    op, prescale, postscale
        As of :meth:`Reducer.allreduce_async`.
    importance : {"energy", "coordinate"}
        What the optimizer weighs, for a policy: energy (SGD) or every coordinate alike (Adam).
    second_moment : callable, optional
        Name to the optimizer's running second moment of a tensor, the same on all ranks, or None where it has
        none yet; for codecs with ``domain="normalized"``, which else keep one of their own.
    max_staleness : int
        Steps whose reductions may be under way while those of the next are submitted. With 0 each tensor is
        waited for before it is submitted again. Otherwise :meth:`advance` ends each step, on all ranks at
        the same place; memory for gradients is `max_staleness` + 1 times that of one step.
    place : Place, optional
        The device on which all gradients lie, from :meth:`Reducer.place_of`; default: they are on the host.
        They must stay as they are until they were waited for, and the results take their place; with
        staleness, until :meth:`advance`, and nothing takes it.
    in_place : bool
        Without staleness, float32 gradients of 1 MiB and more are not copied: such an array must stay as it
        is until it was waited for, and may hold anything then, best the result (``wait(out=array)``).
    alike : mapping of str to object, optional
        What else all ranks must have set alike, by name, though it changes nothing here.
    """

    def __init__(
        self,
        reducer: Reducer,
        specs: Sequence[TensorSpec],
        codec="none",
        *,
        scope: str = "default",
        op: str = "average",
        prescale: float = 1.0,
        postscale: float = 1.0,
        importance: str = "energy",
        second_moment: Callable[[str], Any] | None = None,
        max_staleness: int = 0,
        in_place: bool = False,
        place: Place | None = None,
        alike: Mapping[str, object] | None = None,
    ):
        if max_staleness < 0:
            raise ConfigError(f"max_staleness={max_staleness}: expected at least 0")
        if importance not in _IMPORTANCE:
            raise unknown_name("importance", importance, _IMPORTANCE)
        if scope in reducer.streams:
            raise GradflowError(f"the reducer {reducer.name!r} already has a stream with scope {scope!r}")
        names = [s.name for s in specs]
        twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise GradflowError(f"scope {scope!r}: several tensors are named {', '.join(map(repr, twice))}")
        self.reducer, self.scope, self.specs = reducer, scope, tuple(specs)
        self.op = op
        self.importance = importance
        self.recorder = reducer.recorder
        self._policy = as_policy(codec).fresh()
        self._residuals = Residuals()
        self._normalizer = Normalizer(second_moment)
        self._bands = Bands(reducer, scope, not max_staleness)
        self.max_staleness = max_staleness
        self._placed = place
        self._rounds = 0
        self._low_rank = LowRank(reducer)
        terms = Terms(
            self.specs, importance, max_staleness, in_place and not max_staleness, place, dict(alike or {})
        )
        self._planning = Planning(
            reducer, scope, terms, self._policy, self._residuals, self._low_rank, self._own_units
        )
        self._factors_if = {
            lossy: Factors.of(op, reducer.size, lossy, prescale, postscale) for lossy in (True, False)
        }
        self.restart()
        reducer.streams[scope] = self
        if reducer.node_count == 1 and reducer.rank == 0 and any(c.lossy for c in self.codecs().values()):
            tell_of_one_node(reducer.size)

    def restart(self) -> None:
        """Begin again (after a join), knowing nothing that some rank may not."""
        self._rounds = 0
        self.drain()
        self._own_units()
        self._normalizer.restart()
        self._low_rank.restart()
        self._bands.restart()
        self._planning.begin()

    def _own_units(self) -> None:
        """Bring what is owed into the gradients' own units."""
        self._residuals.in_gradient_units(self._normalizer, self._bands)

    @property
    def _lanes(self) -> Lanes:
        return self._planning.lanes

    # -- a step ------------------------------------------------------------------------------------

    def submit(self, name: str, array) -> Handle:
        """Hand over one gradient; its bucket leaves with its last gradient.

        Parameters
        ----------
        name : str
            One of `specs`, not submitted in this step, nor in any but the `max_staleness` last ones that were
            not waited for.
        array : array_like
            On the CPU, any layout, of the registered size and dtype; copied, and free to change after the
            call, but where the stream is `in_place`.

        Returns
        -------
        Handle
            ``wait(timeout=None, out=None)`` writes the result into `out` (contiguous, same size and
            dtype) or returns a new array; it first sends what is incomplete, as :meth:`flush`.
        """
        index, slot = self._slot(name)
        lane = self._lanes.take(name)
        filling = lane.fillings[index]
        source = filling.look(slot, array)
        if source.size != slot.size or source.dtype != DTYPES[slot.spec.dtype]:
            raise GradflowError(
                f"tensor {name!r}: got {source.size} elements of {source.dtype_name}, "
                f"registered were {slot.spec.elements} of {slot.spec.dtype}"
            )
        seen = None if self.recorder is None else self.recorder.take(self, slot.spec, source)
        factors = self._factors(filling.bucket)
        finite = filling.take(self.reducer.engine, slot, source, self._residuals, factors)
        if filling.normalizes:
            values = filling.values[slot.begin : slot.end]
            residual = None if filling.residual is None else filling.residual[slot.begin : slot.end]
            rescale = None if filling.rescale is None else filling.rescale[slot.begin : slot.end]
            filling.entered[name] = self._normalizer.enter(name, values, residual, finite, rescale)
        elif filling.transforms:
            filling.entered[name] = self._bands.enter(filling, slot, finite)
        filling.present[name] = finite
        lane.outstanding.add(name)
        lane.flushed = False
        if len(filling.present) == len(filling.bucket.slots):
            self._submit_whole(filling)

        def unit():
            if not lane.flushed:
                self._flush(lane)
            return filling.units[name]

        def collect(unit, out=None):
            result = self._collect(lane, filling, slot, unit, out)
            if seen is not None:
                seen(result)
            return result

        def after():
            if not lane.outstanding and (lane.sent or not self.max_staleness):
                self._end_round(lane)

        whole = filling.units.get(name)
        waiter = filling.waiter(self.reducer.engine)
        sent = lambda: filling.units.get(name)  # noqa: E731
        return Handle(waiter, unit if whole is None else whole, name, collect, after, sent)

    def flush(self) -> None:
        """Send what is incomplete, tensor by tensor; all ranks must lack the same ones."""
        self._flush(self._lanes.present)

    def advance(self) -> None:
        """End a step: send what is incomplete; what is submitted from now on belongs to the next step.

        On all ranks at the same place, between the submits and waits of the same steps; without staleness as
        :meth:`flush`.

        Raises
        ------
        MismatchError, PeerError, WireError
            Where this plans anew (a policy moved tensors), and what is under way has failed.
        """
        self.flush()
        if not self.max_staleness:
            return
        if self._placed is not None:
            self._placed.input.synchronize()  # the gradients are in their buckets, and free to change
            for filling in self._lanes.present.fillings:
                filling.let_go()
        self._rounds += 1
        lane = self._lanes.advance()
        if not lane.outstanding:
            self._end_round(lane)
        self._planning.step_ended()

    def announce(self) -> None:
        """Wait until all that follows from what was sent is submitted, before this rank joins."""
        self._low_rank.announce()

    def drain(self) -> None:
        """Wait until all that was sent is reduced here; the results stay, to be waited for as ever.

        Raises
        ------
        MismatchError, PeerError, WireError
            As :meth:`Handle.wait`.
        """
        self._lanes.drain()

    def _flush(self, lane: Lane) -> None:
        lane.flushed = True
        for filling in lane.fillings:
            if len(filling.units) == len(filling.present):
                continue
            for name in [n for n in filling.present if n not in filling.units]:
                self._lanes.follow(filling, False)
                slot = self._lanes.places[name][1]
                finite = filling.present[name]
                filling.units[name] = self._send(filling, f"{self.scope}: {name}", [slot], finite)

    def _submit_whole(self, filling: Filling) -> None:
        if filling.units:  # the first part left alone, so all must
            return
        self._lanes.follow(filling, True)
        unit = self._send(filling, filling.bucket.name, filling.bucket.slots, all(filling.present.values()))
        filling.units = dict.fromkeys(filling.present, unit)

    def _send(self, filling: Filling, name: str, slots: Sequence[Slot], finite: bool):
        bucket, begin, end = filling.bucket, slots[0].begin, slots[-1].end
        codec, state = bucket.codec.at_step(self._rounds), 0
        if filling.normalizes:
            names = [s.spec.name for s in slots if filling.entered[s.spec.name].scale is not None]
            if not names:
                codec = codec(domain="energy")
            else:
                state = self._normalizer.digest(names, self._rounds)
        parts = self._bands.parts(filling, slots) if filling.transforms else {}
        return filling.submit(
            self.reducer,
            slots,
            name=name,
            identity=self._planning.identity(name, slots),
            codec=codec,
            dtype=bucket.dtype,
            elements=end - begin,
            factors=self._factors(bucket),
            unchecked=filling.unchecked,
            ends=[s.begin - begin for s in slots[1:]] + [end - begin],
            finite=finite,
            state=state,
            statistics=(self._policy.wants_statistics and filling.residual is not None)
            or (self._planning.counts_payloads and bucket.codec.lossy),
            versions=self._lanes.count,
            **parts,
        )

    def _factors(self, bucket: Bucket) -> Factors:
        return self._factors_if[bucket.codec.lossy]

    def _collect(self, lane: Lane, filling: Filling, slot: Slot, unit, out):
        name = slot.spec.name
        if filling.normalizes:
            values = filling.values[slot.begin : slot.end]
            self._normalizer.leave(name, values, unit.finite, filling.entered.pop(name))
        elif filling.transforms:
            self._bands.leave(filling, slot, unit.finite)
        # Of this tensor or of any other of the bucket: on a device all of them are given at once.
        saturated = self.op == "average" and filling.bucket.codec.lossy
        result = filling.give(self.reducer.engine, slot, out, saturated)
        self._lanes.settle(filling, name, unit)
        if self._policy.wants_statistics:
            lane.note(filling, slot, unit)
        self._planning.saw(unit, filling.bucket.codec, slot.size)
        lane.outstanding.discard(name)
        filling.present.pop(name, None)
        filling.units.pop(name, None)
        filling.lent = None
        return result

    def _end_round(self, lane: Lane) -> None:
        """All of a step was waited for, on every rank at this point: the policy may change its mind."""
        statistics, lane.statistics = lane.statistics, {}
        if not self._planning.is_present(lane):
            return  # it tells of codecs that are no more
        if not self.max_staleness:  # else advance() counts: a round may end in the midst of another step
            self._rounds += 1
            self._bands.round_ended(lane.fillings, self._residuals)
        self._planning.round_ended(statistics, self._rounds)

    # -- what it is made of ----------------------------------------------------------------------

    def _slot(self, name: str) -> tuple[int, Slot]:
        try:
            return self._lanes.places[name]
        except KeyError:
            raise GradflowError(f"scope {self.scope!r} has no tensor {name!r}") from None

    def on_host(self, array: Any) -> ArrayView:
        """Return one of this stream's gradients or results in C order on the host; copied from the device."""
        placed = self._placed
        if isinstance(array, ArrayView):
            return placed.fetch(array) if array.device and placed is not None else array
        if placed is None or arrays.place_of(array)[0] in arrays.HOST:
            return arrays.contiguous(array)
        return placed.fetch(array)

    def codecs(self) -> dict[str, Any]:
        """Return the codec of each tensor at this moment."""
        return dict(self._planning.table)

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return what error feedback still owes, by name, of the tensors' shapes; collective.

        Of all steps that were sent, also those that were not waited for.
        """
        self._settle()
        self._own_units()
        if not self._planning.feeds_back:
            return {}
        sizes = {s.name: s.elements for s in self.specs}
        total = self._residuals.total(self.reducer, sizes, f"{self.scope}: ")
        return {s.name: total[s.name].reshape(s.shape) for s in self.specs}

    def load_residual_state(self, state: dict[str, Any]) -> None:
        """Continue with a saved state; collective. Names that are missing start at zero."""
        self._settle()
        self._own_units()
        by_name = {s.name: s for s in self.specs}
        for name, value in state.items():
            if name not in by_name:
                raise GradflowError(f"scope {self.scope!r} has no tensor {name!r} to load a residual for")
            if np.size(value) != by_name[name].elements:
                raise GradflowError(
                    f"tensor {name!r}: the residual has {np.size(value)} elements, "
                    f"expected {by_name[name].elements}"
                )
        self._residuals.replace(state, self.reducer.rank)

    def _settle(self) -> None:
        """Drain, between steps only."""
        lane = self._lanes.present
        if lane.outstanding and not lane.sent:
            name = min(lane.outstanding)
            raise GradflowError(f"residuals while tensor {name!r} is under way: wait for it first")
        self.drain()

    def close(self) -> None:
        """Let the reducer forget this stream; what is under way must have been waited for."""
        self.reducer.streams.pop(self.scope, None)
        self._planning.forget()
