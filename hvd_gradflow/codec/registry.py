"""Codecs by name and by wire id: a dict, and the entry-point group ``hvd_gradflow.codecs``."""

from __future__ import annotations

import ast
from typing import Any

from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.bf16 import Bf16
from hvd_gradflow.codec.deadzone import Deadzone
from hvd_gradflow.codec.fp16 import Fp16
from hvd_gradflow.codec.log4 import Log4
from hvd_gradflow.codec.none import NoneCodec
from hvd_gradflow.codec.powersgd import PowerSgd
from hvd_gradflow.codec.sign1 import Sign1
from hvd_gradflow.codec.topk import Topk
from hvd_gradflow.codec.uniform import Int2, Int4, Int8
from hvd_gradflow.codec.wavelet import Wavelet
from hvd_gradflow.device import wire
from hvd_gradflow.errors import ConfigError, unknown_name

ENTRY_POINTS = "hvd_gradflow.codecs"

_by_name: dict[str, type[Codec]] = {}
_by_id: dict[int, type[Codec]] = {}
_plugins_loaded = False


def register(codec: type[Codec]) -> type[Codec]:
    """Add a codec class; usable as a decorator.

    Raises
    ------
    ConfigError
        If its name or wire id is taken by another class or impossible, or a part of the contract is missing.
    """
    name, wire_id = codec.name, codec.wire_id
    if not name or not 1 <= wire_id <= 255:
        raise ConfigError(f"codec {codec.__name__}: name {name!r}, wire id {wire_id}, expected 1 to 255")
    for method in ("encode", "decode", "max_encoded_size"):
        if getattr(codec, method) is getattr(Codec, method):
            raise ConfigError(f"codec {name!r} has no {method}(), which every codec must have")
    for what, key, holder in (
        ("name", name, _by_name.get(name)),
        ("wire id", wire_id, _by_id.get(wire_id)),
    ):
        if holder is not None and holder is not codec:
            raise ConfigError(f"codec {codec.__name__}: {what} {key!r} is taken by {holder.__name__}")
    _by_name[name] = _by_id[wire_id] = codec
    return codec


def names() -> list[str]:
    """Return the names of all codecs, those of other packages included."""
    _load_plugins()
    return sorted(_by_name)


def get(name: str, **options: Any) -> Codec:
    """Return a codec.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    **options
        Its options, for example ``block=1024``.

    Raises
    ------
    ConfigError
        For an unknown name or option, or an impossible value; it lists what there is.
    """
    if name not in _by_name:
        _load_plugins()
    if name not in _by_name:
        raise unknown_name("codec", name, _by_name)
    return _by_name[name].configured(options)


def by_wire_id(wire_id: int) -> type[Codec]:
    """Return the class that reads payloads with this id in their header.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if wire_id not in _by_id:
        _load_plugins()
    if wire_id not in _by_id:
        raise unknown_name("wire id", wire_id, _by_id)
    return _by_id[wire_id]


def from_config(config: dict[str, Any]) -> Codec:
    """Return the codec that a ``get_config()`` describes."""
    options = dict(config)
    return get(options.pop("name"), **options)


def label(codec: Codec) -> str:
    """Return a codec's name with the options that are not its defaults, as in ``log4:block=512``."""
    usual = get(codec.name).get_config()
    changed = {k: v for k, v in codec.get_config().items() if v != usual[k]}
    return codec.name + (":" + ",".join(f"{k}={v}" for k, v in changed.items()) if changed else "")


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of ``NAME`` or ``NAME:OPTION=VALUE,OPTION=VALUE``, as of :func:`label`.

    Raises
    ------
    ConfigError
        If it has another form.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}: expected NAME or NAME:OPTION=VALUE,OPTION=VALUE")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return name, options


def written(text: str) -> str:
    """Return what a user writes in a script for a label, as in ``Compression.log4(block=512)``."""
    name, options = parsed(text)
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"Compression.{name}" + (f"({given})" if given else "")


def _load_plugins() -> None:
    """Register the codecs of other packages, once."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            register(entry.load())
        except Exception as error:
            raise ConfigError(f"codec plug-in {entry.value!r}: {error}") from error


def _check_wire_table() -> None:
    """Each id of the wire format must have a decoder; a payload that nobody reads must not be made."""
    for wire_id, (name, *_) in wire.CODECS.items():
        codec = _by_id.get(wire_id)
        if codec is None or codec.name != name:
            raise ConfigError(f"wire id {wire_id} ({name}) has no decoder")


for _codec in (NoneCodec, Fp16, Bf16, Int8, Int4, Int2, Log4, Deadzone, Sign1, Topk, PowerSgd, Wavelet):
    register(_codec)
_check_wire_table()
