"""The next more faithful code of each: the ladder that an accuracy guard climbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_gradflow.codec.policy_base import codec_of
from hvd_gradflow.codec.policy_model import deadzone_error, rounding_error

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec

# What follows a codec; after one that is not here comes UNKNOWN.
NEXT = {"int2": "int4", "int4": "int8", "log4": "int8", "int8": "fp16", "bf16": "none", "fp16": "none"}
UNKNOWN = "deadzone"  # after codes of a bit or less: signs, the largest values, low ranks
AFTER_DEADZONE = "int8"
FINEST_DEADZONE = 0.004  # lost energy; below it a code of so many levels is no shorter than int8
HANDED_ON = ("rounding", "seed", "error_feedback", "block")


def finer(codec: Any) -> Codec | None:
    """Return the next more faithful codec, or None where nothing is lost.

    ``deadzone`` goes to half its step: a quarter of the energy lost, for a bit more a value that is not zero;
    then to ``int8``. From there on `NEXT` says it. What is not expected to lose less is passed over.
    """
    found = codec
    while found.lossy:
        found = _above(found)
        if rounding_error(found) < rounding_error(codec):
            return found
    return None


def _above(codec: Any) -> Codec:
    if getattr(codec, "stepped", False):
        name, value = codec.control
        closer = codec(**{name: _halved(name, value)})
        return closer if deadzone_error(closer) >= FINEST_DEADZONE else _like(AFTER_DEADZONE, codec)
    return _like(NEXT.get(codec.name, UNKNOWN), codec)


def _halved(name: str, value: float) -> float:
    """The value of one of deadzone's controls at half the step."""
    if name == "similarity":
        return (1.0 - (1.0 - value**2) / 4.0) ** 0.5
    return value / 2.0


def _like(name: str, codec: Any) -> Codec:
    config = codec.get_config()
    keys = HANDED_ON if codec.name in NEXT else HANDED_ON[:-1]  # a block of others may be something else
    return codec_of(name, **{key: config[key] for key in keys if key in config})


def climbed(codec: Any, levels: int) -> list[Codec]:
    """Return the codecs of so many steps up from one, the coarsest first; fewer where the ladder ends."""
    steps: list[Codec] = []
    for _ in range(levels):
        above = finer(steps[-1] if steps else codec)
        if above is None:
            break
        steps.append(above)
    return steps


def more_faithful(a: Any, b: Any) -> Any:
    """Return the one of two codecs that loses less; the first where they lose the same."""
    return b if rounding_error(b) < rounding_error(a) else a


def shown(codec: Any) -> str:
    """Return a codec's name, with what it follows where it has a step."""
    if not getattr(codec, "stepped", False):
        return str(codec.name)
    name, value = codec.control
    return f"{codec.name}({name}={value:.4g})"
