"""``Compression``: what a user writes to choose how gradients travel."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.codec import policy, registry
from hvd_gradflow.errors import ConfigError, UnsupportedError, unknown_name

POLICIES = ("adaptive",)


class UnknownCompression(ConfigError, AttributeError):
    """``Compression.X`` for an X that does not exist; both errors, so that ``hasattr`` works."""


class Choice:
    """One way to compress gradients, with its options; never changes.

    ``Compression.log4`` is one. Calling it gives a copy with other options
    (``Compression.log4(block=512)``), :meth:`bind` gives what unmodified ``horovod.torch`` can work with.

    Parameters
    ----------
    name : str
        Name of a codec or policy.
    options : dict, optional
        Its options.
    made : Codec or Policy, optional
        A ready object instead, which `name` only describes.

    Raises
    ------
    ConfigError
        For an unknown option.
    """

    def __init__(self, name: str, options: dict[str, Any] | None = None, made: Any = None) -> None:
        self.name = name
        self.options = dict(options or {})
        self._made = made
        self.policy()  # refuses a wrong option here, where it was written

    def __call__(self, **options: Any) -> Choice:
        """Return a copy with these options changed."""
        if self._made is not None:
            raise ConfigError(f"{self!r} is configured already: give options where it was made")
        return Choice(self.name, {**self.options, **options})

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in sorted(self.options.items()))
        return f"Compression.{self.name}" + (f"({options})" if options else "")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        return (self.name, self.options, self._made) == (other.name, other.options, other._made)

    def __hash__(self) -> int:
        return hash((self.name, repr(sorted(self.options.items()))))

    @property
    def lossless(self) -> bool:
        """Whether gradients travel as they are."""
        return self.name == "none"

    def policy(self) -> Any:
        """Return a new policy for one stream."""
        if self._made is not None:
            return policy.as_policy(self._made)
        return policy.as_policy(self.name, **self.options)

    def codec_for(self, spec: Any, min_elements: int) -> Any:
        """Return the codec of one tensor that belongs to no stream."""
        return self.policy().start([spec], "energy", min_elements)[spec.name]

    def of_horovod(self) -> Any:
        """Return Horovod's own compressor that does the same without a reducer of ours, or None."""
        if self.options or self._made is not None or self.name not in ("none", "fp16"):
            return None
        from horovod.torch.compression import Compression as theirs

        return getattr(theirs, self.name)

    def bind(
        self,
        parameters: Any,
        process_set: Any = None,
        scope: str | None = None,
        importance: str = "energy",
    ) -> Any:
        """Return a compressor for the optimizer of unmodified ``horovod.torch``.

        Parameters
        ----------
        parameters : torch.nn.Module, or iterable of (str, Parameter)
            Whose gradients will be compressed; gives them names. All that the optimizer holds.
        process_set : ProcessSet, optional
            The one that is given to the optimizer too; all ranks by default.
        scope : str, optional
            Distinguishes equal names of several models; numbered in order of creation by default, so
            every rank must bind in the same order.
        importance : {"energy", "coordinate"}
            How the optimizer weighs errors, for policies that care: ``"coordinate"`` with Adam and its like.

        Returns
        -------
        BoundCompression
            With ``compress`` and ``decompress``, as Horovod expects.
        """
        from hvd_gradflow.torch.binding import BoundCompression

        return BoundCompression(self, parameters, process_set, scope, importance)

    def compress(self, tensor: Any) -> Any:
        """Refuse: without names nothing can be compressed for unmodified Horovod."""
        raise UnsupportedError(
            f"{self!r} is not bound to a model, and horovod.torch hands it a gradient without a name: write"
            f" compression={self!r}.bind(model), or use `import hvd_gradflow.torch as hvd`"
        )

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Refuse, as :meth:`compress`; a tensor that was never compressed comes back as it is."""
        if ctx is None:
            return tensor  # Horovod's sparse path, which skips compress
        return self.compress(tensor)


class _Compression:
    """The namespace of choices: ``Compression.log4``, ``Compression.adaptive``, ..."""

    def __getattr__(self, name: str) -> Choice:
        if name.startswith("_"):
            raise AttributeError(name)
        known = names()
        if name not in known:
            raise UnknownCompression(str(unknown_name("compression", name, known)))
        choice = Choice(name)
        self.__dict__[name] = choice  # one object for each name: `compression is hvd.Compression.none` works
        return choice

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *names()})

    def __repr__(self) -> str:
        return f"<Compression: {', '.join(sorted(names()))}>"

    def __reduce__(self) -> str:
        return "Compression"


Compression = _Compression()


def names() -> set[str]:
    """Return the names of all codecs and policies that exist at this moment."""
    return {*registry.names(), *POLICIES}


def as_choice(compression: Any) -> Choice | None:
    """Return `compression` as a choice of ours, or None if it is a compressor in Horovod's manner.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if isinstance(compression, Choice):
        return compression
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        return None
    if isinstance(compression, policy.Policy) or hasattr(compression, "get_config"):
        return Choice(getattr(compression, "name", type(compression).__name__), made=compression)
    raise ConfigError(
        f"compression={compression!r} of type {type(compression).__name__}: expected one of"
        f" hvd.Compression.{{{', '.join(sorted(names()))}}}, or an object with compress() and decompress()"
    )
