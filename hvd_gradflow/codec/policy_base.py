"""What a policy is: the choice of a codec for every tensor of one stream; and the simplest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hvd_gradflow.codec.policy_model import elements

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec
    from hvd_gradflow.codec.profile import Profile


class Spec(Protocol):
    """What a policy looks at; :class:`hvd_gradflow.reduce.TensorSpec` is one."""

    @property
    def name(self) -> str:
        """Unique within the stream."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def dtype(self) -> str:
        """In words: "float32", ..."""

    @property
    def kind(self) -> str:
        """What it is the gradient of: "dense", "conv", "vector", "embedding" or "other"."""


@dataclass(frozen=True)
class Promise:
    """A ratio of gradient bytes to bytes sent that was asked for.

    Attributes
    ----------
    name : str
        What was asked: of a codec or a policy.
    ratio : float
    everything : bool
        Whether gradients that travel uncompressed count.
    """

    name: str
    ratio: float
    everything: bool = False


class Policy:
    """Decides the codec of every tensor of one stream; the same on all ranks, since it sees equal numbers.

    Attributes
    ----------
    wants_statistics : bool
        Whether :meth:`update` has any use for statistics; without, none are exchanged.
    drift, overhead, window
        Of a policy with :meth:`ladders`: by which factor the exchange must change for another measurement,
        which part of the time measuring may take, and over how many rounds to look.
    certain : bool
        Of such a policy: whether :meth:`choose` would have chosen the same were nothing measured wrong.
    compared : bool
        Whether ranks compare its options (:meth:`get_config`) when a stream is opened, though it has no
        ladders.
    reports_every : int
        Rounds from one exchange of :meth:`report` to the next; 0 where there is none.
    """

    name = "policy"
    wants_statistics = False
    drift = 1.5
    overhead = 0.01
    window = 8
    certain = True
    compared = False
    reports_every = 0

    def fresh(self) -> Policy:
        """Return a policy of the same options without a past, for one more stream."""
        return self

    def start(self, specs: Sequence[Spec], importance: str, min_elements: int) -> dict[str, Codec]:
        """Return the codec of each tensor by name, before anything was measured.

        Parameters
        ----------
        specs : sequence of Spec
            The tensors of the stream.
        importance : {"energy", "coordinate"}
            How the optimizer weighs errors. SGD sums them up by energy; Adam and its like divide every
            coordinate by its own size, so that each coordinate weighs alike.
        min_elements : int
            Tensors with fewer elements go uncompressed.
        """
        raise TypeError(f"{type(self).__name__} does not define start(); a policy must")

    def update(self, statistics: Mapping[str, tuple[float, float]]) -> dict[str, Codec] | None:
        """Take in the statistics of a round; return the whole new table, or None for "as before".

        Parameters
        ----------
        statistics : mapping of str to (float, float)
            Name to (gradient energy, residual energy): sums of squares, equal on all ranks. Tensors that were
            not encoded in this round are missing.
        """
        return None

    def report(self) -> Sequence[float]:
        """Return this rank's own numbers since the last call, to be added to those of the others."""
        return ()

    def heard(self, totals: Sequence[float]) -> dict[str, Codec] | None:
        """Take in the sums of what the ranks reported; as :meth:`update`."""
        return None

    def carried(self) -> Sequence[float]:
        """Return what is to survive a join: numbers, of each of which the largest of all ranks does."""
        return ()

    def resume(self, carried: Sequence[float]) -> dict[str, Codec]:
        """Go on with what survived, after :meth:`start`; returns the table."""
        raise TypeError(f"{type(self).__name__} does not define resume(); a policy with carried() must")

    def notes(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what it has decided since the last call: sentences, and the fields of an event for each."""
        return []

    def promise(self) -> Promise | None:
        """Return the ratio that a user asked for, if that is what it follows."""
        return None

    def may_normalize(self, importance: str) -> bool:
        """Return whether a codec may work in units of the second moment (``domain="normalized"``)."""
        return False

    def ladders(self) -> Mapping[str, Sequence[Codec]]:
        """Return what each tensor may take, by name, the most faithful first; known after :meth:`start`.

        Empty where a policy has no use for a profile of them.
        """
        return {}

    def choose(self, profile: Profile, buckets: Sequence[Sequence[str]]) -> dict[str, Codec]:
        """Return the codec of each tensor by name, by what the codecs were measured to cost.

        Parameters
        ----------
        profile : Profile
            Of all codecs in :meth:`ladders`, equal on all ranks.
        buckets : sequence of sequences of str
            Names of the tensors that would travel together; all of one bucket have the same ladder.
        """
        raise TypeError(f"{type(self).__name__} does not define choose(); a policy with ladders must")

    def get_config(self) -> dict[str, Any]:
        """Return the name and all options, as plain values."""
        return {"name": self.name}


class FixedPolicy(Policy):
    """One codec for every tensor that is not small, and of a shape that it takes."""

    name = "fixed"

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def start(self, specs: Sequence[Spec], importance: str, min_elements: int) -> dict[str, Codec]:
        none = codec_of("none")
        takes = getattr(self.codec, "takes", lambda shape: True)
        return {
            s.name: self.codec if elements(s.shape) >= min_elements and takes(s.shape) else none
            for s in specs
        }

    def promise(self) -> Promise | None:
        name, value = getattr(self.codec, "control", ("", 0.0))
        return Promise(self.codec.name, value) if name == "target_ratio" else None

    def may_normalize(self, importance: str) -> bool:
        return self.codec.get_config().get("domain") == "normalized"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "codec": self.codec.get_config()}


def codec_of(name: str, **options: Any) -> Codec:
    """Look up a codec, with those of `options` that it knows."""
    from hvd_gradflow.codec.registry import get

    known = get(name).get_config()
    return get(name, **{key: value for key, value in options.items() if key in known})
