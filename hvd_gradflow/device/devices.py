"""Devices by name: a dict, and the entry-point group ``hvd_gradflow.devices``."""

from __future__ import annotations

from collections.abc import Callable

from hvd_gradflow.device.device import Device
from hvd_gradflow.errors import ConfigError, UnsupportedError, unknown_name

ENTRY_POINTS = "hvd_gradflow.devices"

Factory = Callable[[int], Device]  # of the device's index

_factories: dict[str, Factory] = {}
_made: dict[tuple[str, int], Device] = {}
_broken: dict[str, str] = {}  # names of plug-ins, and what happened when they were loaded
_plugins_loaded = False


def register(name: str, factory: Factory) -> None:
    """Add a kind of devices; `factory` (the class itself, usually) takes an index, 0 for the first.

    Raises
    ------
    ConfigError
        If the name is taken, or no name.
    """
    if not name or not name.isidentifier():
        raise ConfigError(f"device {name!r}: expected a name of letters, digits and underscores")
    if _factories.get(name, factory) is not factory:
        raise ConfigError(f"device {name!r} is registered already")
    _factories[name] = factory


def names() -> list[str]:
    """Return the names of all kinds of devices, those of other packages included, available or not."""
    _load_plugins()
    return sorted(_factories)


def broken() -> dict[str, str]:
    """Return the plug-ins that could not be loaded, by name, each with the reason."""
    _load_plugins()
    return dict(_broken)


def device(name: str) -> Device:
    """Return a device, available or not.

    Parameters
    ----------
    name : str
        ``cuda`` or, where a machine has several, ``cuda:1``.

    Raises
    ------
    ConfigError
        For a name that does not exist, or a plug-in that cannot be loaded or is no device; it says why.
    """
    kind, colon, number = name.partition(":")
    if colon and not (number.isascii() and number.isdigit()):
        raise ConfigError(f"device {name!r}: expected NAME or NAME:INDEX, as in cuda:1")
    key = (kind, int(number or 0))
    if key not in _made:
        _made[key] = _make(*key)
    return _made[key]


def available(name: str) -> Device:
    """Return a device that can be used here.

    Raises
    ------
    ConfigError
        As :func:`device`.
    UnsupportedError
        If it cannot be used here; it says why.
    """
    found = device(name)
    reason = found.unavailable()
    if reason:
        raise UnsupportedError(f"device {name!r} cannot be used here: {reason}")
    return found


def _make(kind: str, index: int) -> Device:
    if kind not in _factories:
        _load_plugins()
    if kind in _broken:
        raise ConfigError(_broken[kind])
    if kind not in _factories:
        raise unknown_name("device", kind, _factories)
    try:
        made = _factories[kind](index)
    except Exception as error:
        raise ConfigError(f"device {kind!r} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, Device):
        raise ConfigError(
            f"device {kind!r} is a {type(made).__name__}: expected a subclass of hvd_gradflow.device.Device"
        )
    return made


def _load_plugins() -> None:
    """Register the devices of other packages, once; what is wrong with one does not concern the others."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            register(entry.name, entry.load())
        except Exception as error:
            _broken[entry.name] = (
                f"device plug-in {entry.name!r} ({entry.value}): {type(error).__name__}: {error};"
                " mend or uninstall that package"
            )
