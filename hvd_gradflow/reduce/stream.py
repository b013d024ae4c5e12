"""GradientStream: the gradients of one optimizer, in buckets, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from hvd_gradflow import events
from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.device import arrays
from hvd_gradflow.errors import GradflowError, unknown_name
from hvd_gradflow.reduce.agreement import announce
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.filling import Filling
from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.layout import DTYPES, Bucket, Slot, TensorSpec, cut, feeds_back, identify
from hvd_gradflow.reduce.normalizer import Normalizer
from hvd_gradflow.reduce.reducer import Reducer
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.results import saturate
from hvd_gradflow.reduce.tuner import Tuner, Undecided

_said: list[bool] = []  # that nothing is encoded on one node: once a process
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
    ):
        if importance not in _IMPORTANCE:
            raise unknown_name("importance", importance, _IMPORTANCE)
        if scope in reducer.streams:
            raise GradflowError(f"the reducer {reducer.name!r} already has a stream with scope {scope!r}")
        names = [s.name for s in specs]
        twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise GradflowError(f"scope {scope!r}: several tensors are named {', '.join(map(repr, twice))}")
        self.reducer, self.scope, self.specs = reducer, scope, tuple(specs)
        self._op, self._prescale, self._postscale = op, prescale, postscale
        self._importance = importance
        self._policy = as_policy(codec).fresh()
        self._residuals = Residuals()
        self._normalizer = Normalizer(second_moment)
        self._rounds = 0
        self._outstanding: set[str] = set()
        self._statistics: dict[str, tuple[float, float]] = {}
        self._plans = 0
        self._identities: dict[str, tuple[str, int]] = {}  # unit name -> manifest and digest, in this plan
        self._tuner: Tuner | None = None
        Factors.of(op, reducer.size, True, prescale, postscale)
        self.restart()
        reducer.streams[scope] = self
        encodes = any(codec.lossy for codec in self._table.values())
        if encodes and reducer.node_count == 1 and reducer.size > 1 and reducer.rank == 0 and not _said:
            _said.append(True)
            events.warn(
                "all %d ranks are on one node, where nothing is encoded (memory is faster than any codec); "
                "to try compression on one machine set GRADFLOW_RANKS_PER_NODE=1",
                reducer.size,
            )

    def restart(self) -> None:
        """Begin again (after a join), knowing nothing that some rank may not."""
        self._rounds = 0
        self._statistics = {}
        self._residuals.in_gradient_units(self._normalizer)
        self._normalizer.restart()
        self._table = self._policy.start(self.specs, self._importance, self.reducer.config.min_elements)
        if self._tuner is not None:
            self._table = self._tuner.restarted()
        elif self._policy.ladders():
            # Ranks whose policies differ must not begin to measure.
            self._compare(dict.fromkeys(self._table, Undecided(self._policy, self._importance))).wait()
            self._tuner = Tuner(self.reducer, self.scope, self.specs, self._policy, self._table)
            self._table = self._tuner.opened()
        self._plan()

    def _plan(self) -> None:
        """Lay out the buckets anew, for the present table."""
        self._residuals.in_gradient_units(self._normalizer)
        self._residuals.release()
        self.reducer.forget(self._identities)
        self._identities.clear()
        label = f"{self.scope}.{self._plans}."
        self._compare(self._table)
        buckets = cut(self.specs, self._table, self.reducer.config.bucket_mib * 2**20, label)
        nodes = self.reducer.node_count
        self._fillings = [Filling(bucket, self._residuals, nodes) for bucket in buckets]
        self._place = {slot.spec.name: (f, slot) for f in self._fillings for slot in f.bucket.slots}

    def _compare(self, codecs: Mapping[str, Any]) -> Handle:
        """Let all ranks compare what they registered; one that differs learns it by name."""
        plan = f"{self.scope}.{self._plans}.plan"
        self._plans += 1
        self._identities[plan] = identify(self.specs, codecs)
        return announce(self.reducer, plan, self._identities[plan])

    # -- a step ------------------------------------------------------------------------------------

    def submit(self, name: str, array) -> Handle:
        """Copy one gradient into its bucket; the bucket leaves with its last gradient.

        Parameters
        ----------
        name : str
            One of `specs`, not submitted since its last `wait`.
        array : array_like
            On the CPU, any layout, of the registered size and dtype; free to change after the call.

        Returns
        -------
        Handle
            ``wait(timeout=None, out=None)`` writes the result into `out` (contiguous, same size and
            dtype) or returns a new array; it first sends what is incomplete, as :meth:`flush`.
        """
        filling, slot = self._slot(name)
        if name in self._outstanding:
            raise GradflowError(f"tensor {name!r} is already under way in this step; wait for it first")
        source = arrays.contiguous(array)
        if source.size != slot.spec.elements or source.dtype != DTYPES[slot.spec.dtype]:
            raise GradflowError(
                f"tensor {name!r}: got {source.size} elements of {source.dtype_name}, "
                f"registered were {slot.spec.elements} of {slot.spec.dtype}"
            )
        values = filling.values[slot.begin : slot.end]
        finite = True
        if filling.bucket.dtype == DTYPES["float64"]:
            values[:] = source.numpy().reshape(-1)
        else:
            finite = self.reducer.engine.load(source.address, source.dtype, values.ctypes.data, source.size)
        if finite:
            owed = self._residuals.fold(name, values, self._factors(filling.bucket).fold)
            if owed is not None:
                filling.owed[name] = owed
        if filling.normalizes:
            residual = None if filling.residual is None else filling.residual[slot.begin : slot.end]
            filling.entered[name] = self._normalizer.enter(name, values, residual, finite)
        filling.present[name] = finite
        self._outstanding.add(name)
        if len(filling.present) == len(filling.bucket.slots):
            self._submit_whole(filling)

        def unit():
            self.flush()
            return filling.units[name]

        def collect(unit, out=None):
            return self._collect(filling, slot, unit, out)

        whole = filling.units.get(name)
        return Handle(self.reducer.engine, unit if whole is None else whole, name, collect)

    def flush(self) -> None:
        """Send what is incomplete, tensor by tensor; all ranks must lack the same ones."""
        for filling in self._fillings:
            for name in [n for n in filling.present if n not in filling.units]:
                slot = self._place[name][1]
                finite = filling.present[name]
                filling.units[name] = self._send(filling, f"{self.scope}: {name}", [slot], finite)

    def _submit_whole(self, filling: Filling) -> None:
        if filling.units:  # the first part left alone, so all must
            return
        unit = self._send(filling, filling.bucket.name, filling.bucket.slots, all(filling.present.values()))
        filling.units = dict.fromkeys(filling.present, unit)

    def _send(self, filling: Filling, name: str, slots: Sequence[Slot], finite: bool):
        bucket, begin, end = filling.bucket, slots[0].begin, slots[-1].end
        values = filling.values[begin:end]
        if name not in self._identities:
            self._identities[name] = identify([s.spec for s in slots], self._table)
        codec, state = bucket.codec, 0
        if filling.normalizes:
            names = [s.spec.name for s in slots if filling.entered[s.spec.name].scale is not None]
            if not names:
                codec = codec(domain="energy")
            else:
                state = self._normalizer.digest(names, self._rounds)
        return self.reducer.submit(
            name=name,
            identity=self._identities[name],
            codec=codec,
            dtype=bucket.dtype,
            elements=end - begin,
            source=values.ctypes.data,
            target=values.ctypes.data,
            factors=self._factors(bucket),
            residual=None if filling.residual is None else filling.residual[begin:end],
            ends=[s.begin - begin for s in slots[1:]] + [end - begin],
            finite=finite,
            state=state,
            statistics=self._policy.wants_statistics and filling.residual is not None,
            keep=filling,
        )

    def _factors(self, bucket: Bucket) -> Factors:
        return Factors.of(self._op, self.reducer.size, bucket.codec.lossy, self._prescale, self._postscale)

    def _collect(self, filling: Filling, slot: Slot, unit, out):
        name = slot.spec.name
        values = filling.values[slot.begin : slot.end]
        if filling.normalizes:
            self._normalizer.leave(name, values, unit.finite, filling.entered.pop(name))
        if self._op == "average" and filling.bucket.codec.lossy:
            saturate(values, DTYPES[slot.spec.dtype])
        result = self._written(values, slot.spec, out)
        if not unit.finite and name in filling.owed:
            self._residuals.keep(name, filling.owed[name])
        if self._policy.wants_statistics:
            self._note(filling, slot, unit)
        if self._tuner is not None:
            self._tuner.saw(unit, filling.bucket.codec, slot.spec.elements)
        self._outstanding.discard(name)
        filling.present.pop(name, None)
        filling.units.pop(name, None)
        filling.owed.pop(name, None)
        if not self._outstanding:
            self._end_round()
        return result

    def _note(self, filling: Filling, slot: Slot, unit) -> None:
        if filling.energies[0] is not unit:
            filling.energies = (unit, unit.energies())
        energies = filling.energies[1]
        if not energies:
            return
        gradient, residual, _ = energies[slot.index if len(energies) > 1 else 0]
        if gradient > 0:
            self._statistics[slot.spec.name] = (gradient, residual)

    def _written(self, values: np.ndarray, spec: TensorSpec, out):
        dtype = DTYPES[spec.dtype]
        if out is None:
            if spec.dtype in ("float32", "float64"):
                return values.astype(spec.dtype).reshape(spec.shape)
            out = np.empty(spec.shape, np.float16 if spec.dtype == "float16" else np.uint16)
            address = out.ctypes.data
        else:
            target = arrays.view(out)
            if not target.contiguous or target.size != spec.elements or target.dtype != dtype:
                raise GradflowError(
                    f"tensor {spec.name!r}: out has {target.size} elements of {target.dtype_name} "
                    f"(contiguous: {target.contiguous}), expected {spec.elements} of {spec.dtype}, contiguous"
                )
            address = target.address
        if values.dtype == np.float64:
            target.numpy().reshape(-1)[:] = values
        else:
            self.reducer.engine.store(values.ctypes.data, address, dtype, values.size)
        return out

    def _end_round(self) -> None:
        """All of a step was waited for, on every rank at this point: the policy may change its mind."""
        self._rounds += 1
        table = None
        if self._policy.wants_statistics:
            statistics, self._statistics = self._statistics, {}
            table = self._policy.update(dict(sorted(statistics.items())))
        if self._tuner is not None:
            table = self._tuner.round_ended()
        if table is not None and table != self._table:
            moved = {n: c.name for n, c in table.items() if c != self._table[n]}
            events.emit("codecs", scope=self.scope, moved=moved)
            self._table = dict(table)
            self._plan()

    # -- what it is made of ----------------------------------------------------------------------

    def _slot(self, name: str) -> tuple[Filling, Slot]:
        try:
            return self._place[name]
        except KeyError:
            raise GradflowError(f"scope {self.scope!r} has no tensor {name!r}") from None

    def codecs(self) -> dict[str, Any]:
        """Return the codec of each tensor at this moment."""
        return dict(self._table)

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return what error feedback still owes, by name, of the tensors' shapes; collective."""
        self._check_idle()
        self._residuals.in_gradient_units(self._normalizer)
        possible = [*self._table.values(), *chain(*self._policy.ladders().values())]
        if not any(feeds_back(codec) for codec in possible):
            return {}
        sizes = {s.name: s.elements for s in self.specs}
        total = self._residuals.total(self.reducer, sizes, f"{self.scope}: ")
        return {s.name: total[s.name].reshape(s.shape) for s in self.specs}

    def load_residual_state(self, state: dict[str, Any]) -> None:
        """Continue with a saved state; collective. Names that are missing start at zero."""
        self._check_idle()
        self._residuals.in_gradient_units(self._normalizer)
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

    def _check_idle(self) -> None:
        if self._outstanding:
            name = min(self._outstanding)
            raise GradflowError(f"residuals while tensor {name!r} is under way: wait for it first")

    def close(self) -> None:
        """Let the reducer forget this stream; what is under way must have been waited for."""
        self.reducer.streams.pop(self.scope, None)
        self.reducer.forget(self._identities)
