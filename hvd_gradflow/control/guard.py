"""``AccuracyGuard``: any compression, made more faithful where it costs too much accuracy."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.codec.policy_base import Policy, Spec
from hvd_gradflow.codec.policy_model import elements, encoded_bytes
from hvd_gradflow.codec.profile import Profile
from hvd_gradflow.control.ladder import climbed, finer, more_faithful, shown
from hvd_gradflow.control.losses import Losses, Reader
from hvd_gradflow.control.watch import ErrorWatch, LossWatch
from hvd_gradflow.errors import ConfigError

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec

NAMED = 4  # layers in a sentence


@dataclass(frozen=True)
class Options:
    """Options of :class:`AccuracyGuard`, checked on construction."""

    error: float | None
    loss: float | None
    patience: int
    window: int
    calm: int | None

    def __post_init__(self) -> None:
        for name in ("error", "loss"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value < math.inf
            ):
                raise ConfigError(f"AccuracyGuard: {name}={value!r}, expected a positive number, or None")
        if self.error is None and self.loss is None:
            raise ConfigError("AccuracyGuard: error and loss are both None, so nothing would be guarded")
        for name in ("patience", "window", "calm"):
            value = getattr(self, name)
            if value is None and name == "calm":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"AccuracyGuard: {name}={value!r}, expected a whole number, at least 1")


class AccuracyGuard(Policy):
    """Any compression, of which no layer may lose too much for too long.

    A layer whose residual energy over gradient energy is above `error` in `patience` windows in a row goes to
    the next more faithful code (docs/codecs.md has the ladder), and from there on is never sent by a coarser
    one. If the mean loss that the program reports (:meth:`report_loss`) is above its best by more than `loss`
    for as many windows, all layers go one step up. After `calm` windows without trouble a layer tries one
    step down; each time it has, it waits twice as long. So codes do not go to and fro: in T rounds a layer
    comes down log2(T / (calm · window)) times at most.

    All ranks see the same energies, and the loss of all ranks together, so they decide the same.

    Parameters
    ----------
    compression : Choice, str, Codec or Policy
        What to guard: ``hvd.Compression.adaptive``, ``hvd.Compression.deadzone(target_ratio=100)``, ...
    error : float, optional
        What error feedback may hold back of a layer, as energy, in energies of its gradient of one round;
        None: do not look at it. It is not known of codecs without error feedback.
    loss : float, optional
        By which part of the best loss it may be exceeded; None: do not look at it, and ask the ranks for
        none.
    patience : int
        Windows in a row after which something happens.
    window : int
        Rounds (steps) over which energies are summed and losses are averaged.
    calm : int, optional
        Windows without trouble after which a layer that was raised tries a step back; None: never.

    Raises
    ------
    ConfigError
        For an impossible value, or a compression that is none of ours.
    """

    name = "guard"
    wants_statistics = True
    compared = True

    def __init__(
        self,
        compression: Any,
        *,
        error: float | None = 0.3,
        loss: float | None = 0.05,
        patience: int = 3,
        window: int = 20,
        calm: int | None = 50,
    ) -> None:
        self.options = Options(error, loss, patience, window, calm)
        make = getattr(compression, "policy", None)  # of a front end's Choice
        self._inner = make() if callable(make) else as_policy(compression)
        self.route = getattr(compression, "route", None)  # of such a Choice: it holds under guard, too
        if isinstance(self._inner, AccuracyGuard):
            raise ConfigError("AccuracyGuard of an AccuracyGuard: guard the compression that it guards")
        self._losses = Losses()
        self._forget()

    def _forget(self) -> None:
        self._reader = Reader(self._losses)
        self._specs: dict[str, Spec] = {}
        self._chosen: dict[str, Codec] = {}  # by the policy inside
        self._floors: dict[str, list[Codec]] = {}  # the last one counts; the others lead back
        self._notes: list[tuple[str, dict[str, Any]]] = []

    def fresh(self) -> AccuracyGuard:
        made = copy.copy(self)  # of this class, with the same mailbox for losses
        made._inner = self._inner.fresh()
        made._forget()
        return made

    def report_loss(self, loss: Any) -> None:
        """Tell the guard a loss of this rank: after every step, or whenever there is one.

        Ranks may report different numbers of losses, or none; what counts is the mean of all. Losses that are
        not finite are left out.

        Parameters
        ----------
        loss : float, or tensor of one element
            Of the step; a tensor on a GPU is not waited for.

        Raises
        ------
        ConfigError
            If it is no number, or the guard does not look at losses.
        """
        if self.options.loss is None:
            raise ConfigError("report_loss() on an AccuracyGuard with loss=None: give it a threshold")
        self._losses.report(loss)

    def __repr__(self) -> str:
        return f"AccuracyGuard({self.get_config()})"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "compression": self._inner.get_config(), **vars(self.options)}

    # -- what a tuner asks the policy inside -------------------------------------------------------------

    @property
    def drift(self) -> float:  # type: ignore[override]
        return self._inner.drift

    @property
    def overhead(self) -> float:  # type: ignore[override]
        return self._inner.overhead

    @property
    def window(self) -> int:  # type: ignore[override]
        return self._inner.window

    @property
    def certain(self) -> bool:  # type: ignore[override]
        return self._inner.certain

    def may_normalize(self, importance: str) -> bool:
        return self._inner.may_normalize(importance)

    def ladders(self) -> Mapping[str, Sequence[Codec]]:
        return self._inner.ladders()

    def choose(self, profile: Profile, buckets: Sequence[Sequence[str]]) -> dict[str, Codec]:
        self._chosen = self._inner.choose(profile, buckets)
        return self._table()

    # -- decisions ---------------------------------------------------------------------------------------

    def start(self, specs: Sequence[Spec], importance: str, min_elements: int) -> dict[str, Codec]:
        self._chosen = self._inner.start(specs, importance, min_elements)
        self._specs = {s.name: s for s in sorted(specs, key=lambda s: s.name)}
        self._floors = {name: [] for name in self._specs}
        self._rounds = 0
        o = self.options
        self._errors = {name: ErrorWatch(o.error, o.window, o.patience) for name in self._specs}
        self._loss = LossWatch(o.loss, o.patience)
        self._quiet = dict.fromkeys(self._specs, 0)  # the last round with trouble
        self._wait = dict.fromkeys(self._specs, (o.calm or 0) * o.window)
        return self._table()

    def carried(self) -> Sequence[float]:
        return [float(len(floors)) for floors in self._floors.values()]

    def resume(self, carried: Sequence[float]) -> dict[str, Codec]:
        for name, levels in zip(self._floors, carried, strict=True):
            self._floors[name] = climbed(self._chosen[name], int(levels))
        return self._table()

    def update(self, statistics: Mapping[str, tuple[float, float]]) -> dict[str, Codec] | None:
        before = self._table()
        self._rounds += 1
        inner = self._inner.update(statistics) if self._inner.wants_statistics else None
        if inner is not None:
            self._chosen = inner
        for name, energies in sorted(statistics.items()):
            watch = self._errors[name]
            above = watch.observe(*energies)
            if above is not None:
                self._quiet[name] = self._rounds
            if above and self._raise(name):
                self._note(
                    [name], before, f"residual over gradient energy {above:.3g}, above {self.options.error:g}"
                )
        self._step_back(before)
        return self._changed(before)

    def heard(self, totals: Sequence[float]) -> dict[str, Codec] | None:
        total, count, wild = totals
        if count + wild < 1.0:
            return None
        mean = total / count if count > wild else math.nan  # most of them are not finite: it diverges
        before, best = self._table(), self._loss.best
        trouble = self._loss.observe(mean)
        if trouble is None:
            return None
        self._quiet = dict.fromkeys(self._quiet, self._rounds)
        if not trouble:
            return None
        raised = [name for name in self._floors if self._raise(name)]
        assert self.options.loss is not None
        why = f"loss {mean:.4g}"
        if best is not None:
            why += f", above its best, {best:.4g}, by more than {self.options.loss:.2%}"
        self._note(raised, before, why)
        return self._changed(before)

    @property
    def reports_every(self) -> int:  # type: ignore[override]
        return 0 if self.options.loss is None else self.options.window

    def report(self) -> Sequence[float]:
        total, count, wild = self._reader.new()
        return (total, float(count), float(wild))

    def notes(self) -> list[tuple[str, dict[str, Any]]]:
        told, self._notes = self._notes, []
        return told

    def _codec(self, name: str) -> Codec:
        floors = self._floors[name]
        return more_faithful(self._chosen[name], floors[-1]) if floors else self._chosen[name]

    def _table(self) -> dict[str, Codec]:
        return {name: self._codec(name) for name in self._specs}

    def _raise(self, name: str) -> bool:
        above = finer(self._codec(name))
        if above is not None:
            self._floors[name].append(above)
        return above is not None

    def _step_back(self, before: Mapping[str, Codec]) -> None:
        if self.options.calm is None:
            return
        lowered = []
        for name, floors in self._floors.items():
            if floors and self._rounds - self._quiet[name] >= self._wait[name]:
                floors.pop()
                self._wait[name] *= 2
                self._quiet[name] = self._rounds
                lowered.append(name)
        moved = [name for name in lowered if self._codec(name) != before[name]]
        self._note(moved, before, "calm for so long that a step back is tried")

    def _changed(self, before: Mapping[str, Codec]) -> dict[str, Codec] | None:
        table = self._table()
        changed = [name for name in table if table[name] != before[name]]
        for name in changed:
            self._errors[name].restart()
        return table if changed else None

    def _note(self, names: Iterable[str], before: Mapping[str, Codec], why: str) -> None:
        """Note a decision, those that go the same way together."""
        ways: dict[tuple[str, str], list[str]] = {}
        for name in names:
            ways.setdefault((shown(before[name]), shown(self._codec(name))), []).append(name)
        for (old, new), layers in ways.items():
            sizes = [self._expected_bytes(layers, table) for table in (before, self._table())]
            named = ", ".join(layers[:NAMED]) + (f", ... ({len(layers)} layers)" if layers[NAMED:] else "")
            sentence = f"{named}: {old} -> {new} ({why}); about {sizes[0]} -> {sizes[1]} bytes a message"
            fields = {"layers": layers, "before": old, "after": new, "why": why}
            self._notes.append((sentence, {**fields, "bytes_before": sizes[0], "bytes_after": sizes[1]}))

    def _expected_bytes(self, names: Iterable[str], table: Mapping[str, Codec]) -> int:
        return sum(encoded_bytes(table[name], elements(self._specs[name].shape)) for name in names)
