"""``Compression``: what a user writes to choose how gradients travel; each framework adds its ``bind``."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib import import_module
from typing import Any, TypeVar

from hvd_gradflow import events
from hvd_gradflow.codec import policy, registry
from hvd_gradflow.errors import ConfigError, UnknownOption, UnsupportedError, did_you_mean, unknown_name
from hvd_gradflow.reduce.route import Route

C = TypeVar("C", bound="Choice")

_EXACT = ("none", "topk", "powersgd")  # whatever the deadline
_OF_ROUTE = tuple(f.name for f in fields(Route))  # options that are not the codec's


class UnknownCompression(ConfigError, AttributeError):
    """``Compression.X`` for an X that does not exist; both errors, so that ``hasattr`` works."""


class Choice:
    """One way to compress gradients, with its options; never changes.

    ``Compression.log4`` is one. Calling it gives a copy with other options
    (``Compression.log4(block=512)``), ``bind`` gives what unmodified Horovod can work with. Beside the
    options of its codec, each takes `transport` and `deadline_ms` (:class:`Route`; docs/udp.md).

    Parameters
    ----------
    name : str
        Name of a codec or policy.
    options : dict, optional
        Its options.
    made : Codec or Policy, optional
        A ready object instead, which `name` only describes.
    route : Route
        By what gradients travel between nodes.

    Raises
    ------
    ConfigError
        For an unknown option, or a wrong value of one.
    """

    horovod = ""  # Horovod's module for the framework, and ours in its place
    ours = ""
    bound_to = ""  # what bind() takes, in a word

    def __init__(
        self, name: str, options: dict[str, Any] | None = None, made: Any = None, route: Route | None = None
    ) -> None:
        self.name = name
        self.options = dict(options or {})
        self._made = made
        self.route = route or Route()
        self.policy()  # refuses a wrong option here, where it was written

    def __call__(self, **options: Any) -> Choice:
        """Return a copy with these options changed."""
        route = {name: options.pop(name) for name in _OF_ROUTE if name in options}
        if self._made is not None and options:
            raise ConfigError(f"{self!r} is configured already: give options where it was made")
        try:
            changed = replace(self.route, **route)
        except ConfigError as error:
            raise ConfigError(f"{self!r}: {error}") from None
        if changed.deadline_ms and self.name in _EXACT:
            events.warn(
                "%s: deadline_ms=%g changes nothing: %s always arrives exactly (docs/udp.md)",
                repr(self),
                changed.deadline_ms,
                self.name,
            )
        try:
            return type(self)(self.name, {**self.options, **options}, self._made, changed)
        except UnknownOption as error:
            hint = "".join(did_you_mean(option, _OF_ROUTE) for option in options)
            raise UnknownOption(f"{error}; and of every compression: {', '.join(_OF_ROUTE)}{hint}") from None

    def __repr__(self) -> str:
        said = {**dict(sorted(self.options.items())), **self.route.given}
        options = ", ".join(f"{k}={v!r}" for k, v in said.items())
        return f"Compression.{self.name}" + (f"({options})" if options else "")

    def _content(self) -> tuple[Any, ...]:
        return (self.name, self.options, self._made, self.route)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        return self._content() == other._content()

    def __hash__(self) -> int:
        return hash((self.name, repr(sorted(self.options.items())), self.route))

    @property
    def lossless(self) -> bool:
        """Whether gradients travel as they are, by whatever Horovod has for it."""
        return self.name == "none" and not self.route.given

    def policy(self) -> Any:
        """Return a new policy for one stream."""
        if self._made is not None:
            return policy.as_policy(self._made)
        return policy.as_policy(self.name, **self.options)

    def may_normalize(self, importance: str) -> bool:
        """Return whether a stream may work in units of the second moment (``domain="normalized"``)."""
        return bool(self.policy().may_normalize(importance))

    def codec_for(self, spec: Any, min_elements: int) -> Any:
        """Return the codec of one tensor that belongs to no stream."""
        return self.policy().start([spec], "energy", min_elements)[spec.name]

    def of_horovod(self) -> Any:
        """Return Horovod's own compressor that does the same without a reducer of ours, or None."""
        if self.options or self.route.given or self._made is not None or self.name not in ("none", "fp16"):
            return None
        return getattr(import_module(f"{self.horovod}.compression").Compression, self.name)

    def compress(self, tensor: Any) -> Any:
        """Refuse: without names nothing can be compressed for unmodified Horovod."""
        raise UnsupportedError(
            f"{self!r} is not bound to {self.bound_to}, and {self.horovod} hands it a gradient without a"
            f" name: write compression={self!r}.bind({self.bound_to}), or use `import {self.ours} as hvd`"
        )

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Refuse, as :meth:`compress`; a tensor that was never compressed comes back as it is."""
        if ctx is None:
            return tensor  # Horovod's sparse path, which skips compress
        return self.compress(tensor)


class Namespace:
    """The namespace of choices: ``Compression.log4``, ``Compression.adaptive``, ..."""

    def __init__(self, choice: type[Choice], name: str = "Compression") -> None:
        self._choice = choice
        self._name = name  # of this object in its module, for pickle
        self.__module__ = choice.__module__

    def __getattr__(self, name: str) -> Choice:
        if name.startswith("_"):
            raise AttributeError(name)
        known = names()
        if name not in known:
            raise UnknownCompression(str(unknown_name("compression", name, known)))
        choice = self._choice(name)
        self.__dict__[name] = choice  # one object for each name: `compression is hvd.Compression.none` works
        return choice

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *names()})

    def __repr__(self) -> str:
        return f"<Compression: {', '.join(sorted(names()))}>"

    def __reduce__(self) -> str:
        return self._name


def names() -> set[str]:
    """Return the names of all codecs and policies that exist at this moment."""
    return {*registry.names(), *policy.POLICIES}


def as_choice(compression: Any, cls: type[C]) -> C | None:
    """Return `compression` as a choice of class `cls`, or None if it is a compressor in Horovod's manner.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if isinstance(compression, cls):
        return compression
    if isinstance(compression, Choice):  # of another framework
        return cls(compression.name, compression.options, compression._made, compression.route)
    bound = getattr(compression, "choice", None)
    if isinstance(bound, Choice):
        raise ConfigError(
            f"{compression!r} is bound, as unmodified Horovod needs it: pass compression=hvd.{bound!r}"
        )
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        return None
    if isinstance(compression, policy.Policy) or hasattr(compression, "get_config"):
        name = getattr(compression, "name", type(compression).__name__)
        return cls(name, made=compression, route=getattr(compression, "route", None))  # a guard has one
    raise ConfigError(
        f"compression={compression!r} of type {type(compression).__name__}: expected one of"
        f" hvd.Compression.{{{', '.join(sorted(names()))}}}, or an object with compress() and decompress()"
    )
