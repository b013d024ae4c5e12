"""The reference backend: every kernel in NumPy, slow and easy to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_common as common
from hvd_gradflow.device import numpy_floats as floats
from hvd_gradflow.device import numpy_log4 as log4
from hvd_gradflow.device import numpy_uniform as uniform
from hvd_gradflow.device import wire
from hvd_gradflow.device.arrays import BFLOAT16, FLOAT16, ArrayView
from hvd_gradflow.device.base import Backend

# Wire id: encode, content, decode.
_CODECS: dict[int, tuple] = {
    wire.NONE: (floats.encode_none, floats.content_plain, floats.decode_none),
    wire.FP16: (floats.encode_fp16, floats.content_fp16, floats.decode_fp16),
    wire.BF16: (floats.encode_bf16, floats.content_plain, floats.decode_bf16),
    **dict.fromkeys(wire.UNIFORM, (uniform.encode, uniform.content, uniform.decode)),
    wire.LOG4: (log4.encode, log4.content, log4.decode),
}


class NumpyBackend(Backend):
    """The kernels in NumPy; bit for bit what the compiled ones give."""

    name = "numpy"

    def describe(self) -> str:
        return f"reference, NumPy {np.__version__} (slow)"

    def max_encoded_size(self, spec: dict[str, Any], n: int) -> int:
        wire.check_spec(spec)
        return wire.HEADER_BYTES + wire.body_bytes(spec, n)

    def encode(
        self,
        spec: dict[str, Any],
        x: np.ndarray,
        residual: np.ndarray | None,
        key: int,
        first: int,
        dtype: int,
        out: np.ndarray,
    ) -> int:
        wire.check_spec(spec)
        size = wire.HEADER_BYTES + wire.body_bytes(spec, x.size)
        if residual is not None and residual.size != x.size:
            raise ValueError(f"residual has {residual.size} elements, expected {x.size}")
        if out.size < size:
            raise ValueError(f"out has {out.size} bytes, expected at least {size}")
        if first % spec["block"]:
            raise ValueError(f"first={first} is not a multiple of the block ({spec['block']})")
        encode, _, _ = _CODECS[spec["id"]]
        body, nonfinite = encode(spec, x, residual, key, first)
        flags = wire.FLAG_STOCHASTIC * spec["rounding"] + wire.FLAG_NONFINITE * bool(nonfinite)
        _, bits, scaled, _ = wire.CODECS[spec["id"]]
        block_log2 = spec["block"].bit_length() - 1 if scaled else 0
        fields = (wire.MAGIC, wire.VERSION, spec["id"], dtype, flags, block_log2, bits, x.size, len(body), 0)
        unsigned = wire.Header(*fields, 0).pack() + body
        crc = common.crc32c(np.frombuffer(unsigned, np.uint8))
        out[:size] = np.frombuffer(wire.Header(*fields, crc).pack() + body, np.uint8)
        return size

    def status(self, spec: dict[str, Any], payload: np.ndarray, n: int) -> int:
        """Return the gf_wire_status of a payload, by the same checks in the same order as the C++."""
        wire.check_spec(spec)
        if payload.size < wire.HEADER_BYTES:
            return wire.TRUNCATED
        h = wire.Header(*wire.LAYOUT.unpack(payload[: wire.HEADER_BYTES].tobytes()))
        _, bits, scaled, _ = wire.CODECS[spec["id"]]
        size, announced = payload.size - wire.HEADER_BYTES, wire.body_bytes(spec, n)
        block_log2 = spec["block"].bit_length() - 1 if scaled else 0
        for wrong, status in (
            (h.magic != wire.MAGIC, wire.BAD_MAGIC),
            (h.version != wire.VERSION, wire.BAD_VERSION),
            ((h.codec, h.bits, h.block_log2) != (spec["id"], bits, block_log2), wire.BAD_CODEC),
            (h.count != n, wire.BAD_COUNT),
            (h.length != announced, wire.BAD_LENGTH),
            (size < announced, wire.TRUNCATED),
            (size > announced, wire.BAD_LENGTH),
        ):
            if wrong:
                return status
        unsigned = payload.copy()
        unsigned[28:32] = 0
        if common.crc32c(unsigned) != h.crc:
            return wire.BAD_CHECKSUM
        known = wire.FLAG_STOCHASTIC | wire.FLAG_NONFINITE
        if h.reserved or not 1 <= h.dtype <= 4 or h.flags & ~known:
            return wire.BAD_CONTENT
        valid, nonfinite = _CODECS[spec["id"]][1](spec, payload[wire.HEADER_BYTES :], n)
        if not valid or (nonfinite is not None and nonfinite != bool(h.flags & wire.FLAG_NONFINITE)):
            return wire.BAD_CONTENT
        return wire.OK

    def _values(self, spec: dict[str, Any], payload: np.ndarray, n: int) -> np.ndarray:
        wire.check(self.status(spec, payload, n), spec, payload, n)
        return _CODECS[spec["id"]][2](spec, payload[wire.HEADER_BYTES :], n)

    def decode(self, spec: dict[str, Any], payload: np.ndarray, out: np.ndarray) -> None:
        out[:] = self._values(spec, payload, out.size)

    def decode_add(self, spec: dict[str, Any], payload: np.ndarray, acc: np.ndarray) -> None:
        values = self._values(spec, payload, acc.size)
        with np.errstate(all="ignore"):
            acc += values
        if wire.CODECS[spec["id"]][2]:  # a block that is not finite decodes to the canonical NaN
            acc[np.isnan(values)] = common.NAN

    def load_f32(self, source: ArrayView, out: np.ndarray) -> bool:
        flat = source.numpy().reshape(-1)
        with np.errstate(all="ignore"):
            out[:] = floats.from_bf16_bits(flat) if source.dtype == BFLOAT16 else flat
        return bool(np.isfinite(out).all())

    def store_f32(self, src: np.ndarray, scale: float, target: ArrayView) -> None:
        with np.errstate(all="ignore"):
            v = src * np.float32(scale)
            if target.dtype == BFLOAT16:
                v = floats.bf16_bits(v)
            elif target.dtype == FLOAT16:
                v = floats.half(v)
            target.numpy().reshape(-1)[:] = v

    def sum_f32(self, out: np.ndarray, sources: Sequence[np.ndarray], scale: float) -> None:
        out[:] = _sum(sources) * np.float32(scale)

    def sum_f64(self, out: np.ndarray, sources: Sequence[np.ndarray], scale: float) -> None:
        out[:] = _sum(sources) * np.float64(scale)

    def energy(self, x: np.ndarray) -> float:
        lanes = common.to_blocks(np.where(np.isfinite(x), x, 0), 8).astype(np.float64) ** 2
        if lanes.size == 0:
            return 0.0
        s = np.add.accumulate(lanes, axis=0)[-1]  # in order, unlike np.sum
        s = s[:4] + s[4:]
        return float((s[0] + s[1]) + (s[2] + s[3]))

    def crc32c(self, data: np.ndarray, crc: int = 0) -> int:
        return common.crc32c(data, crc)

    def dither_key(self, seed: int, rank: int, name_hash: int, sequence: int, stage: int) -> int:
        return common.dither_key(seed, rank, name_hash, sequence, stage)


def _sum(sources: Sequence[np.ndarray]) -> np.ndarray:
    total = sources[0].copy()
    for source in sources[1:]:
        total += source
    return total
