"""What is particular to deadzone's specification and payloads: its options, its tables, its bounds.

docs/wire-format.md (section deadzone) and ``gf_codec_spec`` in cython_ext/gf_api.h.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_gradflow.device.wire_entropy import ENTROPY_BIT, unknown_stage

BLOCK = 32
GROUP = 32  # blocks
CODE_BITS = 12  # a gradient's codes: at most 2^12
SUM_BITS = 22  # those of sums
CONTROLS = ("step", "similarity", "target_ratio")  # gf_control
SECONDS = ("auto", "exact", "requantize")  # gf_second
_SEGMENT_BYTES = 8
# Of a block at most: form and shift 15, k 7, mask and signs 64, low bits 32 (SUM_BITS - 1), runs 96; then
# filled up. It may also need a segment, a group's mask and a group's size of its own.
_BLOCK_BYTES = (15 + 7 + 64 + 32 * (SUM_BITS - 1) + 96 + 7) // 8


def blocks_of(n: int) -> int:
    """Blocks of `n` elements, the last one perhaps incomplete."""
    return -(-n // BLOCK)


def max_body(n: int) -> int:
    """Most bytes of a body of `n` elements."""
    return 4 + blocks_of(n) * (_BLOCK_BYTES + _SEGMENT_BYTES + 4 + 2)


def pack_params(
    control: int, value: float, second: int, offset: float, domain: int = 0, entropy: bool = False
) -> tuple[int, int]:
    """Return the specification's two words."""
    (asked,) = struct.unpack("<Q", struct.pack("<d", value))
    (added,) = struct.unpack("<I", struct.pack("<f", offset))
    return asked, control | second << 8 | domain << 16 | int(entropy) * ENTROPY_BIT | added << 32


def unpack_params(params: tuple[int, int]) -> tuple[int, float, int, np.float32]:
    """Return control, value, second and offset; the reverse of :func:`pack_params`."""
    (value,) = struct.unpack("<d", struct.pack("<Q", params[0]))
    offset = np.frombuffer(struct.pack("<I", params[1] >> 32), "<f4")[0]
    return params[1] & 0xFF, value, params[1] >> 8 & 0xFF, offset


def fault(spec: dict[str, Any]) -> str | None:
    """Return why a specification of deadzone cannot be used, or None."""
    control, value, second, offset = unpack_params(spec["params"])
    for wrong, words in (
        (spec["bits"] != 0, "bits do not belong to this codec"),
        (spec["rounding"] != 0, "this codec rounds to nearest only"),
        (spec["block"] != BLOCK, f"this codec has blocks of {BLOCK}"),
        (control >= len(CONTROLS), "unknown control"),
        (second >= len(SECONDS), "unknown second encoding"),
        (unknown_stage(spec["params"]), "unknown entropy stage"),
        (not 0.0 <= offset <= 0.5, "offset must be from 0 to 0.5"),
        (not 0.0 < value < math.inf, "what is asked for must be positive"),
    ):
        if wrong:
            return words
    return None


def own_step(multiple: float, energy: float, n: int) -> np.float32:
    """The step that is `multiple` times the root mean square of `n` elements with this sum of squares."""
    step = multiple * math.sqrt(energy / n) if n else 0.0
    return np.float32(step if step < 3.0e38 else 3.0e38)  # of the largest floats, it might not be finite


@dataclass(frozen=True)
class Segments:
    """The table of segments in a body.

    Attributes
    ----------
    ends : ndarray of uint64
        Where each segment ends, in elements.
    steps : ndarray of float32
        One for each segment.
    front : int
        Where in the body the table ends.
    """

    ends: np.ndarray
    steps: np.ndarray
    front: int

    def same_segments(self, ends: np.ndarray, steps: np.ndarray) -> bool:
        """Whether these are the segments, with the same bits in each step."""
        return self.ends.tolist() == ends.tolist() and self.steps.tobytes() == steps.tobytes()

    def blocks(self) -> list[int]:
        """Blocks of each segment."""
        return np.diff(-(-self.ends.astype(np.int64) // BLOCK), prepend=0).tolist()


@dataclass(frozen=True)
class Tables(Segments):
    """The tables of a packed body.

    Attributes
    ----------
    ends, steps, front
        See :class:`Segments`.
    sizes : ndarray of int64
        Bytes of each group, of all segments in order.
    data : int
        Where in the body the groups begin.
    """

    sizes: np.ndarray
    data: int


def read_segments(body: np.ndarray, n: int) -> Segments | None:
    """Read the table of segments of a body of `n` elements; None if it fits neither n nor the body."""
    if body.size < 4:
        return None
    data = body.tobytes()
    (count,) = struct.unpack_from("<I", data)
    front = 4 + _SEGMENT_BYTES * count
    if (count == 0) != (n == 0) or count > blocks_of(n) or front > body.size:
        return None
    segments = np.frombuffer(data, [("blocks", "<u4"), ("step", "<u4")], count, 4)
    blocks, steps = segments["blocks"].astype(np.int64), segments["step"].copy()
    if (blocks == 0).any() or (steps >= 0x7F800000).any() or blocks.sum() != blocks_of(n):
        return None
    ends = np.minimum(np.cumsum(blocks) * BLOCK, n).astype(np.uint64)
    return Segments(ends, steps.view(np.float32), front)


def read_tables(body: np.ndarray, n: int) -> Tables | None:
    """Read the tables of a packed body of `n` elements; None if they do not fit each other or the body."""
    segments = read_segments(body, n)
    if segments is None:
        return None
    groups = sum(-(-blocks // GROUP) for blocks in segments.blocks())
    data = segments.front + 2 * groups
    if data > body.size:
        return None
    sizes = np.frombuffer(body.tobytes(), "<u2", groups, segments.front).astype(np.int64)
    if data + sizes.sum() != body.size:
        return None
    return Tables(segments.ends, segments.steps, segments.front, sizes, data)


def write_tables(ends: np.ndarray, steps: np.ndarray, sizes: list[int]) -> bytes:
    """Return the bytes before the groups; the reverse of :func:`read_tables`."""
    segments = np.zeros(ends.size, [("blocks", "<u4"), ("step", "<f4")])
    segments["blocks"] = np.diff(-(-ends.astype(np.int64) // BLOCK), prepend=0)
    segments["step"] = steps
    return struct.pack("<I", ends.size) + segments.tobytes() + np.array(sizes, "<u2").tobytes()


def check_segments(ends: np.ndarray, steps: np.ndarray, n: int) -> None:
    """Refuse segments that no payload of `n` elements can have, with ValueError."""
    if ends.size != steps.size:
        raise ValueError(f"{ends.size} ends and {steps.size} steps, expected as many")
    begin = 0
    for i, (end, step) in enumerate(zip(ends.tolist(), steps.tolist())):
        if end <= begin or end > n or (i + 1 < ends.size and end % BLOCK):
            raise ValueError(
                f"segment {i} ends at {end}: expected ascending multiples of {BLOCK}, the last one {n}"
            )
        if not (0.0 <= step < math.inf and math.copysign(1.0, step) > 0):
            raise ValueError(f"step {step} of segment {i}: expected a finite number that is not negative")
        begin = end
    if begin != n:
        raise ValueError(f"segments end at {begin}, expected {n}")
