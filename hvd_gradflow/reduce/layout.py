"""How the gradients of one optimizer are laid out in buckets: a pure function of names, sizes and codecs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_gradflow.codec import Codec

DTYPES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4}
KINDS = ("dense", "conv", "vector", "embedding", "other")
_NAMES_SHOWN = 3
SPLIT_ELEMENTS = 2**16  # from here on a transformed gradient is reduced in two parts
_LARGE = 2**20  # bytes of a gradient for which a message of its own costs less than copying it


def kind_of(shape: Sequence[int]) -> str:
    """Return what a parameter of this shape usually is: ``vector``, ``dense`` or ``conv``."""
    if len(shape) <= 1:
        return "vector"
    if len(shape) == 2:
        return "dense"
    return "conv" if len(shape) <= 5 else "other"


@dataclass(frozen=True)
class TensorSpec:
    """One gradient.

    Parameters
    ----------
    name : str
    shape : tuple of int
    dtype : {"float32", "float64", "float16", "bfloat16"}
    kind : {"dense", "conv", "vector", "embedding", "other"}
        What it is the gradient of; "vector" is everything of one dimension (bias, norm).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "other"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise TypeError(f"tensor {self.name!r}: dtype {self.dtype}, expected one of {', '.join(DTYPES)}")
        if self.kind not in KINDS:
            raise ValueError(f"tensor {self.name!r}: kind {self.kind!r}, expected one of {', '.join(KINDS)}")

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a 0-dimensional tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies in its bucket, in elements."""

    spec: TensorSpec
    index: int
    begin: int
    end: int  # of the tensor; the next one begins at a block border

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.end - self.begin


@dataclass(frozen=True)
class Bucket:
    """Tensors of one codec, side by side in one buffer."""

    name: str
    codec: Codec
    dtype: int  # of the buffer: float32 or float64
    slots: tuple[Slot, ...]
    elements: int
    in_place: bool = False  # one large float32 gradient, which needs no buffer

    @property
    def ends(self) -> list[int]:
        """Where each tensor's range ends, the gap behind it included."""
        return [s.begin for s in self.slots[1:]] + [self.elements]


def manifest(specs: Sequence[TensorSpec], codecs: Mapping[str, Codec]) -> str:
    """Return a line for each tensor; of two lines the coordinator shows the fields that differ."""
    described = {codec: _described(codec.get_config()) for codec in dict.fromkeys(codecs.values())}
    rows = (
        (s.name, s.elements, s.dtype, f"shape {list(s.shape)}", *described[codecs[s.name]]) for s in specs
    )
    return "\n".join("\t".join(map(str, row)) for row in rows)


def _described(config: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return a configuration as fields: the name, then option by option, those of what is inside too."""
    fields = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            fields += _described(value, f"{prefix}{key}.")
        elif key == "name" and not prefix:
            fields.append(f"codec {value}")
        else:
            fields.append(f"{prefix}{key}={value!r}")
    return fields


def digest(text: str) -> int:
    """Return 64 bits that identify a text on every platform."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def plan_name(scope: str, number: int = 0) -> str:
    """Return the name under which ranks compare a stream's plans; by default of the first."""
    return f"{scope}.{number}.plan"


def identify_plan(
    specs: Sequence[TensorSpec], codecs: Mapping[str, Codec], **options: object
) -> tuple[str, int]:
    """Return the manifest of a stream's plan and its digest: of its tensors, and what else must be alike."""
    more = "".join(f"\t{key}={value!r}" for key, value in options.items())
    text = "\n".join(line + more for line in manifest(specs, codecs).splitlines())
    return text, digest(text)


def identify(specs: Sequence[TensorSpec], codecs: Mapping[str, Codec]) -> tuple[str, int]:
    """Return the manifest of some tensors and its digest."""
    text = manifest(specs, codecs)
    return text, digest(text)


def feeds_back(codec: Codec) -> bool:
    """Return whether what a codec loses is kept and added the next time."""
    return codec.lossy and getattr(codec, "error_feedback", True)


def normalizes(codec: Codec) -> bool:
    """Return whether gradients are encoded in units of their second moments (:mod:`.normalizer`)."""
    return getattr(codec, "domain", "energy") == "normalized"


def transforms(codec: Codec) -> bool:
    """Return whether gradients may be encoded as wavelet coefficients (:mod:`.bands`)."""
    return codec.transforms


def factorizes(codec: Codec) -> bool:
    """Return whether matrices travel as low-rank factors (:mod:`.low_rank`)."""
    return getattr(codec, "low_rank", False)


def accumulator(dtype: int, codec: Codec) -> int:
    """Return the dtype that a gradient is summed in: float64 as such where nothing is lost, else float32."""
    return DTYPES["float64"] if dtype == DTYPES["float64"] and not codec.lossy else DTYPES["float32"]


def cut(
    specs: Sequence[TensorSpec],
    codecs: Mapping[str, Codec],
    bucket_bytes: float,
    label: str,
    in_place: bool = False,
) -> list[Bucket]:
    """Lay out tensors in buckets.

    Last tensors first, since backward makes them first; a bucket is closed when it has reached
    `bucket_bytes` (of the buffer). A block of the codec never spans two tensors. With `in_place`, large
    float32 gradients that are reduced as such have a bucket of their own, which needs no buffer.
    """
    open_groups: dict[tuple, list[TensorSpec]] = {}
    sizes: dict[tuple, int] = {}
    groups: list[tuple[tuple, list[TensorSpec]]] = []
    for spec in reversed(specs):
        codec = codecs[spec.name]
        dtype = accumulator(DTYPES[spec.dtype], codec)
        key = (codec, dtype)
        if (in_place and _stays(spec, codec, dtype)) or _splits(spec, codec):
            groups.append((key, [spec]))
            continue
        if key not in open_groups:
            open_groups[key] = []
            sizes[key] = 0
            groups.append((key, open_groups[key]))
        open_groups[key].append(spec)
        sizes[key] += spec.elements * (8 if dtype == DTYPES["float64"] else 4)
        if sizes[key] >= bucket_bytes:
            del open_groups[key]
    return [_bucket(key, members, f"{label}{i}", in_place) for i, (key, members) in enumerate(groups)]


def _stays(spec: TensorSpec, codec: Codec, dtype: int) -> bool:
    large = spec.elements * 4 >= _LARGE
    as_it_is = not normalizes(codec) and not transforms(codec) and not factorizes(codec)
    return large and spec.dtype == "float32" and dtype == DTYPES["float32"] and as_it_is


def _splits(spec: TensorSpec, codec: Codec) -> bool:
    return transforms(codec) and spec.elements >= SPLIT_ELEMENTS


def _bucket(key: tuple, members: list[TensorSpec], place: str, in_place: bool) -> Bucket:
    codec, dtype = key
    in_place = in_place and len(members) == 1 and _stays(members[0], codec, dtype)
    # Every tensor begins where a device reads 16 bytes at a time.
    block = math.lcm(max(int(codec.spec()["block"]), 1), 4)
    slots, at = [], 0
    for index, spec in enumerate(members):
        slots.append(Slot(spec, index, at, at + spec.elements))
        at += -(-spec.elements // block) * block
    names = [s.name for s in members]
    shown = ", ".join(names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        shown += f" .. {names[-1]} ({len(names)} tensors)"
    return Bucket(f"{place}: {shown}", codec, dtype, tuple(slots), slots[-1].end, in_place)
