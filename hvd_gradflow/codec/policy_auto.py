"""The policy ``auto``: the most faithful codec that is about as fast as any, by what was measured here."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_gradflow.codec import policy_model
from hvd_gradflow.codec.policy_base import Policy, Spec, codec_of
from hvd_gradflow.codec.profile import Profile
from hvd_gradflow.errors import ConfigError, UnknownOption, unknown_name

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec

DEFAULT = ("none", "fp16", "int8", "log4", "deadzone")
# Where each coordinate counts alike, a codec that drops the small ones is not what a user expects by default.
DEFAULT_COORDINATE = ("none", "fp16", "int8", "log4")
NORMALIZED = {"domain": "normalized", "step": 0.7}  # of deadzone, where it is allowed there: docs/codecs.md
VECTOR_BITS = 16  # bias and norm: few bytes, and much depends on them
CERTAIN = 2.0  # standard errors by which a codec must be faster to be preferred to a more faithful one


@dataclass(frozen=True)
class Options:
    """Options of :class:`AutoPolicy`, checked on construction."""

    allow: Any = None
    margin: float = 0.1
    drift: float = 1.5
    overhead: float = 0.01
    window: int = 8

    def __post_init__(self) -> None:
        if self.allow is not None:
            object.__setattr__(self, "allow", _checked(self.allow))
        for name, low, high in (("margin", 0.0, 10.0), ("drift", 1.05, 1000.0), ("overhead", 1e-6, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ConfigError(f"auto: {name}={value!r}, expected a number from {low:g} to {high:g}")
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise ConfigError(f"auto: window={self.window!r}, expected a number of rounds, at least 1")


def _checked(allow: Any) -> tuple[Any, ...]:
    """Return what is allowed as names and codecs, each once."""
    from hvd_gradflow.codec import registry

    if isinstance(allow, str):
        allow = [name for name in re.split(r"[\s,+]+", allow) if name]
    if hasattr(allow, "encode"):
        allow = [allow]
    try:
        found = tuple(dict.fromkeys(allow))
    except TypeError:
        raise ConfigError(f"auto: allow={allow!r}, expected names of codecs, or codecs") from None
    if not found:
        raise ConfigError(f"auto: allow is empty, expected some of {', '.join(registry.names())}")
    for item in found:
        if isinstance(item, str):
            if item not in registry.names():
                raise unknown_name("codec in auto's allow", item, registry.names())
        elif not all(hasattr(item, part) for part in ("encode", "decode", "get_config")):
            raise ConfigError(f"auto: {item!r} in allow, expected the name of a codec, or a codec")
        if getattr(codec_of(item) if isinstance(item, str) else item, "low_rank", False):
            raise ConfigError(
                f"auto: {item!r} in allow: what it costs depends on shapes, not on sizes; take it by itself"
            )
    return found


class AutoPolicy(Policy):
    """By measurement.

    Bucket by bucket the most faithful codec is taken whose predicted time is about the shortest.
    One-dimensional tensors go with at least 16 bits, small ones uncompressed. On one node, and until
    something was measured, the most faithful codec of all is taken: `none`, unless it is not allowed.

    Parameters
    ----------
    allow : sequence of str or Codec, or str, optional
        What may be chosen; a text names codecs with commas between. Default: none, fp16, int8, log4 and
        deadzone, the last not where the optimizer weighs every coordinate alike; there ``"deadzone"`` in
        `allow` means ``deadzone(domain="normalized", step=0.7)``.
    margin : float
        Part of the shortest time that may be given away for fidelity.
    drift : float
        Factor by which the exchange must have become slower or faster for another measurement.
    overhead : float
        Part of the time that measuring again may take.
    window : int
        Rounds whose median tells how fast the exchange is.

    Raises
    ------
    ConfigError
        For an unknown option or codec, nothing allowed, or an impossible value.
    """

    name = "auto"

    def __init__(self, **options: Any) -> None:
        known = Options.__dataclass_fields__
        for name in options:
            if name not in known:
                raise UnknownOption(str(unknown_name("option of auto", name, known)))
        self.options = Options(**options)
        self.drift, self.overhead, self.window = (
            self.options.drift,
            self.options.overhead,
            self.options.window,
        )
        self._given = options
        self._specs: dict[str, Spec] = {}
        self._ladders: dict[str, tuple[Codec, ...]] = {}

    def __call__(self, **options: Any) -> AutoPolicy:
        """Return a copy with some options changed."""
        return AutoPolicy(**{**self._given, **options})

    def fresh(self) -> AutoPolicy:
        return AutoPolicy(**self._given)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items() if k != "name")
        return f"auto({shown})"

    def get_config(self) -> dict[str, Any]:
        o, allow = self.options, None
        if o.allow is not None:
            allow = [item if isinstance(item, str) else item.get_config() for item in o.allow]
        return {
            "name": self.name,
            "allow": allow,
            "margin": o.margin,
            "drift": o.drift,
            "overhead": o.overhead,
            "window": o.window,
        }

    def may_normalize(self, importance: str) -> bool:
        return any(c.get_config().get("domain") == "normalized" for c in self._allowed(importance))

    def start(self, specs: Sequence[Spec], importance: str, min_elements: int) -> dict[str, Codec]:
        self._specs = {s.name: s for s in specs}
        everything = self._allowed(importance)
        vectors = tuple(c for c in everything if c.bits_per_element >= VECTOR_BITS) or everything[:1]
        small = (codec_of("none"),)
        self._ladders = {
            s.name: small
            if policy_model.elements(s.shape) < min_elements
            else vectors
            if s.kind == "vector"
            else everything
            for s in specs
        }
        return {name: ladder[0] for name, ladder in self._ladders.items()}

    def ladders(self) -> dict[str, tuple[Codec, ...]]:
        return self._ladders

    def choose(self, profile: Profile, buckets: Sequence[Sequence[str]]) -> dict[str, Codec]:
        table = {name: ladder[0] for name, ladder in self._ladders.items()}
        self.certain = True
        for names in buckets:
            ladder = self._ladders[names[0]]
            if len(ladder) > 1:
                best = self._best(profile, ladder, [self._specs[name] for name in names])
                table.update(dict.fromkeys(names, best))
        return table

    def _allowed(self, importance: str) -> tuple[Codec, ...]:
        """The codecs that may be chosen, the most faithful first."""
        allow = self.options.allow
        if allow is None:
            allow = DEFAULT_COORDINATE if importance == "coordinate" else DEFAULT
        made = [self._made(item, importance) for item in allow]
        return tuple(
            sorted(made, key=lambda c: (-c.bits_per_element, policy_model.rounding_error(c), repr(c)))
        )

    @staticmethod
    def _made(item: Any, importance: str) -> Any:
        if not isinstance(item, str):
            return item
        return codec_of(item, **(NORMALIZED if importance == "coordinate" and item == "deadzone" else {}))

    def _best(self, profile: Profile, ladder: Sequence[Any], specs: Sequence[Spec]) -> Any:
        sizes = [wire_size(codec, specs) for codec in ladder]
        times = [profile.seconds(codec, size) for codec, size in zip(ladder, sizes, strict=True)]
        errors = [profile.fits[codec].error(size) for codec, size in zip(ladder, sizes, strict=True)]
        least = min(range(len(ladder)), key=times.__getitem__)
        for codec, seconds, error in zip(ladder, times, errors, strict=True):
            lost, granted = seconds - times[least], self.options.margin * times[least]
            doubt = CERTAIN * math.sqrt(error * error + errors[least] * errors[least])
            if lost <= max(granted, doubt):
                self.certain &= lost <= granted
                return codec
        return ladder[least]


def wire_size(codec: Any, specs: Sequence[Spec]) -> int:
    """Return the bytes that a codec starts from: float64 stays what it is only where nothing is lost."""
    return sum(
        policy_model.plain_bytes(policy_model.elements(s.shape), "float32" if codec.lossy else s.dtype)
        for s in specs
    )
