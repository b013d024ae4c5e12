"""Packages that hold some names themselves, and hand on the rest of a module of Horovod's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def horovods(module: str, for_package: str) -> Any:
    """Return a module of Horovod's, or raise ImportError with the remedy."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        framework = module.split(".")[1].upper()
        variable = {"TORCH": "PYTORCH", "KERAS": "TENSORFLOW"}.get(framework, framework)
        raise ImportError(
            f"{for_package} stands on Horovod, which cannot be imported ({error}): build it with"
            f" HOROVOD_WITH_MPI=1 HOROVOD_WITH_{variable}=1"
        ) from error


class Names:
    """The names of one such package; its methods are the package's ``__getattr__`` and ``__dir__``.

    Parameters
    ----------
    package : str
        The package.
    horovod : str or callable
        Horovod's module for the rest, or what tells it.
    ours : dict of str to str
        Name to the module that holds it, or that is it: within the package, or (with a dot) anywhere.
    found : dict
        The package's ``globals()``: what was looked up once is kept there.
    """

    def __init__(
        self, package: str, horovod: str | Callable[[], str], ours: dict[str, str], found: dict[str, Any]
    ) -> None:
        self._package, self._horovod, self._ours, self._found = package, horovod, ours, found

    def find(self, name: str) -> Any:
        """Return what a name stands for; ``module.__getattr__`` (PEP 562)."""
        if name in self._ours:
            place = self._ours[name]
            module = import_module(place if "." in place else f"{self._package}.{place}")
            own = place.rpartition(".")[2] == name
            value = self._found[name] = module if own else getattr(module, name)
            return value
        if name == "__all__":
            return [n for n in self.all() if not n.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
        try:
            return getattr(self._rest(), name)
        except AttributeError:
            raise AttributeError(
                f"neither {self._package!r} nor {self._rest().__name__!r} has an attribute {name!r}"
            ) from None

    def all(self) -> list[str]:
        """Return all names; ``module.__dir__``."""
        return sorted({*self._found, *self._ours, *dir(self._rest())})

    def _rest(self) -> Any:
        name = self._horovod if isinstance(self._horovod, str) else self._horovod()
        return horovods(name, self._package)
