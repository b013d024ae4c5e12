"""What a backend is: an object with all kernels of :mod:`hvd_gradflow.device.kernels`."""

from __future__ import annotations

import inspect
from typing import Any

from hvd_gradflow.device.kernels import KERNELS
from hvd_gradflow.errors import ConfigError


class Backend:
    """Base of the backends; a subclass has a name and one method for each kernel."""

    name = ""

    def describe(self) -> str:
        """Return one line about what runs the kernels."""
        return self.name


def check_backend(backend: Any) -> None:
    """Refuse a backend that lacks a kernel or names its arguments otherwise.

    Raises
    ------
    ConfigError
        Naming the kernel.
    """
    for kernel in KERNELS:
        method = getattr(backend, kernel.name, None)
        if method is None:
            raise ConfigError(f"backend {backend.name!r} has no kernel {kernel.name!r}")
        found = tuple(inspect.signature(method).parameters)
        if found != kernel.arguments:
            raise ConfigError(
                f"backend {backend.name!r}, kernel {kernel.name!r}: arguments {found},"
                f" expected {kernel.arguments}"
            )
