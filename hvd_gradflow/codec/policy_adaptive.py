"""The policy ``adaptive``: bits by kind of tensor, then by measured importance, a budget or a similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hvd_gradflow.codec import policy_budget
from hvd_gradflow.codec.importance import Importance
from hvd_gradflow.codec.policy_base import Policy, Promise, Spec, codec_of
from hvd_gradflow.codec.policy_candidates import candidates
from hvd_gradflow.codec.policy_model import (
    BUCKET_BYTES,
    elements,
    encoded_bytes,
    expected_error,
    message_bytes,
    plain_bytes,
)
from hvd_gradflow.errors import ConfigError, UnknownOption, unknown_name

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec

LADDER = ("log4", "int8", "bf16")
# bf16: 16 bits for each value by itself, at any loss scale.
START = {"conv": "log4", "vector": "bf16"}
START_OTHERS = "int8"
IMPORTANCE = ("energy", "coordinate")

# Bounds of the weighted relative error at which a tensor moves on the ladder. The distance between a bound
# and the one that leads back is what keeps a plan: with log4's usual 0.04 a tensor rests where it started.
RAISE = 0.1  # above where it started: error feedback already delays a tenth of the gradient
RAISE_BACK = 0.02  # back to where it started, after it was lowered
LOWER = 0.005  # below where it started: log4 for a tensor of an eighth of the mean energy per element
LOWER_BACK = 0.05  # back to where it started, after it was raised


@dataclass(frozen=True)
class Options:
    """Options of :class:`AdaptivePolicy`, checked on construction."""

    target_ratio: float | None = None
    similarity: float | None = None
    window: int = 50
    warmup: int = 5
    margin: float = 0.1
    block: int | None = None
    rounding: str = "nearest"
    seed: int = 0
    error_feedback: bool = True
    entropy: bool = False

    def __post_init__(self) -> None:
        if self.target_ratio is not None and not 1.0 <= self.target_ratio < float("inf"):
            raise ConfigError(
                f"adaptive: target_ratio {self.target_ratio!r}, expected a number of at least 1 or None"
            )
        if self.similarity is not None and not 0.0 < self.similarity < 1.0:
            raise ConfigError(
                f"adaptive: similarity {self.similarity!r}, expected a number between 0 and 1 or None"
            )
        if None not in (self.target_ratio, self.similarity):
            raise ConfigError("adaptive: target_ratio and similarity exclude each other, give one")
        for name in ("window", "warmup"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(
                    f"adaptive: {name} {getattr(self, name)!r}, expected a number of rounds, at least 1"
                )
        if not 0.0 <= self.margin < 1.0:
            raise ConfigError(f"adaptive: margin {self.margin!r}, expected a number from 0 to below 1")

    def for_codecs(self) -> dict[str, Any]:
        """Return what is handed on to the codecs; their own default where nothing was asked for."""
        names = ("rounding", "seed", "error_feedback", "entropy")
        options = {name: getattr(self, name) for name in names}
        return options if self.block is None else {**options, "block": self.block}


class AdaptivePolicy(Policy):
    """Bits by importance.

    Tensors start by kind: convolution kernels log4, one-dimensional ones bf16, the others int8, small ones
    uncompressed. Then the weighted relative error decides: residual energy over gradient energy, times
    (where the optimizer weighs energy) the tensor's energy per element over that of all, at most 1.
    Tensors whose error is large gain bits, those that hardly count lose some.

    With `target_ratio` the total error is made as small as the budget allows, over all tensors together. With
    `similarity` each tensor goes the cheapest way that keeps it. Both have ``deadzone`` to choose from, for
    optimizers that weigh coordinates alike in its normalized domain.

    Parameters
    ----------
    target_ratio : float, optional
        Uncompressed bytes over bytes on the wire, over all tensors of the stream, that must be reached.
    similarity : float, optional
        What each tensor must keep, as of :class:`hvd_gradflow.codec.deadzone.Deadzone`.
    window : int
        Rounds between two decisions, and of the running statistics.
    warmup : int
        Rounds before the first decision.
    margin : float
        With a budget: the part of the present error that a new table must save to be taken.
    block, rounding, seed, error_feedback, entropy
        Handed to the codecs; `block` None leaves each its own.

    Raises
    ------
    ConfigError
        For an unknown option or an impossible value; by :meth:`start` for a ratio out of reach.
    """

    name = "adaptive"
    wants_statistics = True

    def __init__(self, **options: Any) -> None:
        known = {f.name for f in fields(Options)}
        for name in options:
            if name not in known:
                raise UnknownOption(str(unknown_name("option of adaptive", name, known)))
        self.options = Options(**options)
        handed_on = self.options.for_codecs()
        self._use("energy")
        taken = {key for codec in self._codecs.values() for key in codec.get_config()}
        for name, value in handed_on.items():
            if name not in taken and value != getattr(Options(), name):
                raise ConfigError(f"adaptive: no codec of this build takes the option {name!r}")
        self._specs: dict[str, Spec] = {}
        self._table: dict[str, str] = {}

    def _use(self, importance: str) -> None:
        offered = candidates(self.options.for_codecs(), importance, self.options.similarity)
        self._offered = tuple(offered)
        self._codecs: dict[str, Codec] = {"none": codec_of("none"), **offered}
        self._model = {label: expected_error(c) for label, c in self._codecs.items()}

    def __call__(self, **options: Any) -> AdaptivePolicy:
        """Return a copy with some options changed."""
        return AdaptivePolicy(**{**self._given(), **options})

    def fresh(self) -> AdaptivePolicy:
        return AdaptivePolicy(**self._given())

    def _given(self) -> dict[str, Any]:
        return {f.name: getattr(self.options, f.name) for f in fields(Options)}

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, **self._given()}

    def promise(self) -> Promise | None:
        ratio = self.options.target_ratio
        return None if ratio is None else Promise(self.name, ratio, everything=True)

    def may_normalize(self, importance: str) -> bool:
        bounded = (self.options.target_ratio, self.options.similarity) != (None, None)
        return bounded and importance == "coordinate"

    def start(self, specs: Sequence[Spec], importance: str, min_elements: int) -> dict[str, Codec]:
        if importance not in IMPORTANCE:
            raise unknown_name("importance", importance, IMPORTANCE)
        self._importance = importance
        self._use(importance)
        self._specs = {s.name: s for s in sorted(specs, key=lambda s: s.name)}
        self._seen = Importance(self.options.window)
        self._rounds, self._decisions = 0, 0
        self._start = {
            name: "none" if elements(s.shape) < min_elements else START.get(s.kind, START_OTHERS)
            for name, s in self._specs.items()
        }
        self._table = dict(self._start)
        if self.options.target_ratio is not None:
            self._budget = self._bytes_allowed(self.options.target_ratio)
            self._table = self._within_budget()
        elif self.options.similarity is not None:
            self._table = self._keeping_similarity()
        return self._as_codecs()

    def update(self, statistics: Mapping[str, tuple[float, float]]) -> dict[str, Codec] | None:
        if not statistics:
            return None
        self._seen.observe(statistics)
        self._rounds += 1
        if self._rounds < self.options.warmup or (self._rounds - self.options.warmup) % self.options.window:
            return None
        self._decisions += 1
        if self.options.target_ratio is not None:
            table = self._within_budget()
        elif self.options.similarity is not None:
            table = self._keeping_similarity()
        else:
            table = self._on_ladder()
        changed = [name for name in self._table if table[name] != self._table[name]]
        for name in changed:
            self._seen.changed(name, self._table[name], self._decisions)
        self._table = table
        return self._as_codecs() if changed else None

    def _as_codecs(self) -> dict[str, Codec]:
        return {name: self._codecs[codec] for name, codec in self._table.items()}

    def _error(self, name: str, codec: str) -> float:
        """Relative error of a tensor under a codec: measured where it was, else expected."""
        if not self.options.error_feedback:
            return self._model[codec]  # without error feedback there is no residual to measure
        measured = self._seen.error(name) if codec == self._table[name] else None
        if measured is None:
            measured = self._seen.remembered(name, codec, self._decisions)
        return self._model[codec] if measured is None else measured

    def _densities(self) -> dict[str, float]:
        """Gradient energy per element, over the mean of all tensors that were measured; 1 where not known."""
        if self._importance == "coordinate":
            return dict.fromkeys(self._specs, 1.0)
        energies = {name: self._seen.energy(name) for name in self._specs}
        known = {name: energy for name, energy in energies.items() if energy is not None}
        count = sum(elements(self._specs[name].shape) for name in known)
        mean = sum(known.values()) / count if known else 1.0
        return {
            name: known[name] / elements(self._specs[name].shape) / mean if name in known else 1.0
            for name in self._specs
        }

    def _on_ladder(self) -> dict[str, str]:
        densities, table = self._densities(), dict(self._table)
        for name, codec in self._table.items():
            if self._specs[name].kind == "vector" or codec not in LADDER or self._seen.energy(name) is None:
                continue
            weight = min(1.0, densities[name])
            rung, home = LADDER.index(codec), LADDER.index(self._start[name])
            if rung + 1 < len(LADDER) and self._error(name, codec) * weight > (
                RAISE if rung >= home else RAISE_BACK
            ):
                table[name] = LADDER[rung + 1]
            elif rung > 0:
                lower = LADDER[rung - 1]
                if self._error(name, lower) * weight < (LOWER if rung <= home else LOWER_BACK):
                    table[name] = lower
        return table

    def _keeping_similarity(self) -> dict[str, str]:
        """The cheapest way for each tensor; deadzone keeps a similarity by itself."""
        assert self.options.similarity is not None
        allowed = 1.0 / self.options.similarity**2 - 1.0
        table = dict(self._table)
        for name, spec in self._specs.items():
            if self._start[name] == "none":
                continue
            n = elements(spec.shape)
            good = [c for c in self._offered if c == "deadzone" or self._error(name, c) <= allowed]
            table[name] = min(good, key=lambda c: (encoded_bytes(self._codecs[c], n), c))
        return table

    def _bytes_allowed(self, ratio: float) -> int:
        """Bytes the compressed tensors may take; refuses a ratio that cannot be reached."""
        sizes = {name: plain_bytes(elements(s.shape), s.dtype) for name, s in self._specs.items()}
        total = sum(sizes.values())
        fixed = sum(size for name, size in sizes.items() if self._start[name] == "none")
        if fixed:  # in a bucket of their own, whose payloads have headers
            n = fixed // 4
            fixed += BUCKET_BYTES + message_bytes(n) + encoded_bytes(self._codecs["none"], n) - 4 * n
        choices = self._choices()
        least = fixed + policy_budget.cheapest(choices) + (BUCKET_BYTES if choices else 0)
        if total and ratio * least > total:
            raise ConfigError(
                f"adaptive: target_ratio {ratio:g} is out of reach: {len(sizes)} gradients of {total} bytes "
                f"take at least {least}, {fixed} of them uncompressed; ask for at most {total / least:.2f}, "
                "or lower GRADFLOW_MIN_ELEMENTS"
            )
        return int(total / ratio) - fixed

    def _choices(self) -> dict[str, list[policy_budget.Choice]]:
        densities = self._densities()
        choices: dict[str, list[policy_budget.Choice]] = {}
        for name, spec in self._specs.items():
            if self._start[name] == "none":
                continue
            n = elements(spec.shape)
            weight, around = n * densities[name], message_bytes(n)
            choices[name] = [
                policy_budget.Choice(
                    c, encoded_bytes(self._codecs[c], n) + around, weight * self._error(name, c)
                )
                for c in self._offered
            ]
        return choices

    def _within_budget(self) -> dict[str, str]:
        choices = self._choices()
        chosen = policy_budget.allocate_in_buckets(choices, self._budget, BUCKET_BYTES)
        if self._decisions:
            present = {
                name: next(c for c in options if c.codec == self._table[name])
                for name, options in choices.items()
            }
            now, then = (sum(c.error for c in table.values()) for table in (present, chosen))
            if then > (1.0 - self.options.margin) * now:
                return self._table
        return {**self._table, **{name: choice.codec for name, choice in chosen.items()}}
