"""The 32-byte header of every payload, and what is wrong with a payload, in words (docs/wire-format.md)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_gradflow.device import wire_deadzone as deadzone
from hvd_gradflow.device import wire_topk as topk
from hvd_gradflow.device.wire_entropy import ENTROPY_BIT
from hvd_gradflow.errors import ConfigError, WireError

MAGIC = 0x4647  # "GF"
VERSION = 1
HEADER_BYTES = 32
FLAG_STOCHASTIC = 1
FLAG_NONFINITE = 2
FLAG_ENTROPY = 4  # the body is entropy coded
MIN_BLOCK = 32
MAX_BLOCK = 32768

NONE, FP16, BF16, INT8, INT4, INT2, LOG4, DEADZONE, SIGN1, TOPK = range(1, 11)
WAVELET = 12  # holds a payload of deadzone; no backend knows it
# Wire id: name, bits of a code, bytes of a block's scale (0: no blocks), whether it can round stochastically.
CODECS = {
    NONE: ("none", 32, 0, False),
    FP16: ("fp16", 16, 1, False),
    BF16: ("bf16", 16, 0, False),
    INT8: ("int8", 8, 4, True),
    INT4: ("int4", 4, 4, True),
    INT2: ("int2", 2, 4, True),
    LOG4: ("log4", 4, 1, True),
    DEADZONE: ("deadzone", 0, 0, False),  # blocks without scales, and a size that depends on the content
    SIGN1: ("sign1", 1, 4, False),  # one or two bits for each element of a block, or none
    TOPK: ("topk", 32, 0, False),  # values, and where they stand
}
# Bodies whose length depends on the content.
VARIABLE = (DEADZONE, SIGN1, TOPK)
UNIFORM = (INT8, INT4, INT2)
ENTROPY_CODED = (*UNIFORM, LOG4, DEADZONE)  # whose bodies may be

# gf_wire_status of cython_ext/gf_api.h.
OK, TRUNCATED, BAD_MAGIC, BAD_VERSION, BAD_CODEC, BAD_COUNT, BAD_LENGTH, BAD_CHECKSUM, BAD_CONTENT = range(9)

LAYOUT = struct.Struct("<HBBBBBBQQII")


@dataclass(frozen=True)
class Header:
    """The fields of a header, in the order in which they stand."""

    magic: int
    version: int
    codec: int
    dtype: int
    flags: int
    block_log2: int
    bits: int
    count: int
    length: int
    reserved: int
    crc: int

    def pack(self) -> bytes:
        """Return the 32 bytes."""
        return LAYOUT.pack(*vars(self).values())

    @classmethod
    def unpack(cls, payload: Any) -> Header:
        """Read the header of a payload, which is not checked any further.

        Raises
        ------
        WireError
            If there are fewer than 32 bytes, or they are not of this format and version.
        """
        size = memoryview(payload).nbytes
        if size < HEADER_BYTES:
            raise WireError(f"payload of {size} bytes is truncated: expected at least {HEADER_BYTES}")
        header = cls(*LAYOUT.unpack_from(payload))
        if header.magic != MAGIC:
            raise WireError(
                f"payload begins with {header.magic:#06x}, expected {MAGIC:#06x}: not one of ours"
            )
        if header.version != VERSION:
            raise WireError(
                f"payload has format version {header.version}, this build reads {VERSION}:"
                " all ranks need the same release"
            )
        return header


def spec_fault(spec: dict[str, Any]) -> str | None:
    """Return why a specification cannot be used, or None."""
    if spec["id"] not in CODECS:
        return "unknown codec id"
    if spec["id"] == DEADZONE:
        return deadzone.fault(spec)
    if spec["id"] == TOPK:
        return topk.fault(spec)
    _, bits, scale_bytes, stochastic = CODECS[spec["id"]]
    if spec["bits"] != (bits if spec["id"] in UNIFORM else 0):
        return "bits do not belong to this codec"
    if spec["rounding"] not in (0, 1):
        return "unknown rounding"
    if spec["rounding"] and not stochastic:
        return "this codec rounds to nearest only"
    if spec["params"] != (0, 0) and (spec["params"] != (0, ENTROPY_BIT) or spec["id"] not in ENTROPY_CODED):
        return "unknown entropy stage"
    block = spec["block"]
    if not scale_bytes:
        return None if block == 1 else "this codec has no blocks: block must be 1"
    if not MIN_BLOCK <= block <= MAX_BLOCK or block & (block - 1):
        return f"block must be a power of two from {MIN_BLOCK} to {MAX_BLOCK}"
    return None


def check_spec(spec: dict[str, Any]) -> None:
    """Refuse a specification that no payload can have, with ConfigError."""
    fault = spec_fault(spec)
    if fault:
        raise ConfigError(f"codec specification {spec}: {fault}")


def scale_bytes(spec: dict[str, Any], n: int) -> int:
    """Bytes of the per-block part of a body of `n` elements."""
    return CODECS[spec["id"]][2] * -(-n // spec["block"])


def body_bytes(spec: dict[str, Any], n: int) -> int:
    """Bytes of a body of `n` elements; the most there can be, where it depends on the content."""
    if spec["id"] == DEADZONE:
        return deadzone.max_body(n)
    if spec["id"] == TOPK:
        return topk.max_body(n)
    if spec["id"] == SIGN1:
        return scale_bytes(spec, n) + 2 * ((n + 7) // 8)
    return scale_bytes(spec, n) + (n * CODECS[spec["id"]][1] + 7) // 8


def length_fits(spec: dict[str, Any], n: int, length: int, flags: int) -> bool:
    """Whether a body of `n` elements, under a header with these flags, can have `length` bytes."""
    most = body_bytes(spec, n)
    if spec["id"] in VARIABLE:
        least = {DEADZONE: 4, SIGN1: scale_bytes(spec, n), TOPK: topk.FRONT_BYTES + 1}[spec["id"]]
        return least <= length <= most
    coded = spec["id"] in ENTROPY_CODED and flags & FLAG_ENTROPY
    return length == most or bool(coded and scale_bytes(spec, n) + 4 <= length < most)


def check(status: int, spec: dict[str, Any], payload: np.ndarray, n: int) -> None:
    """Raise what a decoder's status means.

    Raises
    ------
    WireError
        For every status but OK: what was expected and what was found.
    """
    if status == OK:
        return
    header = Header.unpack(payload)  # raises by itself where magic, version or length are wrong
    name, bits, _, _ = CODECS[spec["id"]]
    total = HEADER_BYTES + header.length
    if status == BAD_CODEC:
        if (header.codec, header.bits, 2**header.block_log2) == (DEADZONE, bits, spec["block"]):
            raise WireError(_other_steps(payload, n))
        seen = CODECS.get(header.codec, (f"id {header.codec}",))[0]
        raise WireError(
            f"payload of codec {seen} (bits {header.bits}, block {2**header.block_log2}), expected {name}"
            f" (bits {bits}, block {spec['block']}): all ranks need the same options"
        )
    if status == BAD_COUNT:
        raise WireError(f"payload of {header.count} elements, expected {n}")
    if status == TRUNCATED or (status == BAD_LENGTH and payload.size < total):
        raise WireError(f"payload of {payload.size} bytes is truncated: its header announces {total}")
    if status == BAD_LENGTH:
        varies = spec["id"] in VARIABLE or header.flags & FLAG_ENTROPY
        expected = f"{'at most ' if varies else ''}{HEADER_BYTES + body_bytes(spec, n)}"
        raise WireError(
            f"payload of {payload.size} bytes whose header announces {total}:"
            f" expected {expected} for {n} elements"
        )
    if status == BAD_CHECKSUM:
        raise WireError(
            f"payload with checksum {header.crc:#010x} does not match its content: damaged on its way"
        )
    raise WireError(
        f"payload of codec {name} with a correct checksum but an impossible header or body (reserved"
        f" {header.reserved}, dtype {header.dtype}, flags {header.flags:#04x}): made by another program"
    )


def _other_steps(payload: np.ndarray, n: int) -> str:
    tables = deadzone.read_segments(np.frombuffer(payload, np.uint8)[HEADER_BYTES:], n)
    seen = (
        []
        if tables is None
        else [f"{step:g}" for step in tables.steps[:4]] + ["..."] * (tables.steps.size > 4)
    )
    return (
        f"payload of codec deadzone with the steps {', '.join(seen)}, expected others: the ranks' steps"
        " differ; all ranks need the same options"
    )
