"""The backends by name, made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_gradflow import config
from hvd_gradflow.device.base import Backend, check_backend
from hvd_gradflow.errors import ConfigError, unknown_name


def _cpu() -> Backend:
    from hvd_gradflow.device.cpu_backend import CpuBackend

    return CpuBackend()


def _numpy() -> Backend:
    from hvd_gradflow.device.numpy_backend import NumpyBackend

    return NumpyBackend()


_factories: dict[str, Callable[[], Any]] = {"cpu": _cpu, "numpy": _numpy}
_made: dict[str, Any] = {}
_default: str | None = None


def names() -> list[str]:
    """Return the names of all backends."""
    return sorted(_factories)


def register(name: str, factory: Callable[[], Any]) -> None:
    """Add a backend; `factory` makes it when it is first asked for.

    Raises
    ------
    ConfigError
        If the name is taken.
    """
    if name in _factories:
        raise ConfigError(f"backend {name!r} is registered already")
    _factories[name] = factory


def backend(name: str | None = None) -> Any:
    """Return a backend.

    Parameters
    ----------
    name : str, optional
        The default is ``GRADFLOW_BACKEND``, read at the first call.

    Raises
    ------
    ConfigError
        For a name that does not exist.
    UnsupportedError
        If the compiled kernels are asked for and cannot be loaded.
    """
    global _default
    if name is None:
        name = _default = _default or config.load().backend
    made = _made.get(name)
    if made is None:
        if name not in _factories:
            raise unknown_name("backend", name, _factories)
        made = _factories[name]()
        check_backend(made)
        _made[name] = made
    return made


def describe() -> str:
    """Return one line about the default backend."""
    return backend().describe()
