"""The reference backend: every kernel in NumPy, slow and easy to read."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from hvd_gradflow.device import numpy_code_entropy as code_entropy
from hvd_gradflow.device import numpy_common as common
from hvd_gradflow.device import numpy_deadzone as deadzone
from hvd_gradflow.device import numpy_deadzone_entropy as deadzone_entropy
from hvd_gradflow.device import numpy_floats as floats
from hvd_gradflow.device import numpy_log4 as log4
from hvd_gradflow.device import numpy_sign1 as sign1
from hvd_gradflow.device import numpy_topk as topk
from hvd_gradflow.device import numpy_uniform as uniform
from hvd_gradflow.device import numpy_wavelet, wavelet, wire
from hvd_gradflow.device.arrays import BFLOAT16, FLOAT16, ArrayView
from hvd_gradflow.device.base import Backend
from hvd_gradflow.device.wire_deadzone import check_segments, read_segments, read_tables
from hvd_gradflow.device.wire_entropy import entropy_of
from hvd_gradflow.device.wire_topk import check_index_code, check_indices

# Wire id: encode, content, decode. deadzone has more of them.
_CODECS: dict[int, tuple] = {
    wire.NONE: (floats.encode_none, floats.content_plain, floats.decode_none),
    wire.FP16: (floats.encode_fp16, floats.content_fp16, floats.decode_fp16),
    wire.BF16: (floats.encode_bf16, floats.content_plain, floats.decode_bf16),
    **dict.fromkeys(wire.UNIFORM, (uniform.encode, uniform.content, uniform.decode)),
    wire.LOG4: (log4.encode, log4.content, log4.decode),
    wire.DEADZONE: (None, deadzone.content, deadzone.decode),
    wire.SIGN1: (sign1.encode, sign1.content, sign1.decode),
    wire.TOPK: (topk.encode, topk.content, topk.decode),
}

# GF_ENERGY_CHUNK and GF_ENERGY_LANES in cython_ext/elements.h.
_ENERGY_CHUNK, _ENERGY_LANES = 1024, 32


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
        self._check_arguments(spec, x, residual, out)
        if first % spec["block"]:
            raise ValueError(f"first={first} is not a multiple of the block ({spec['block']})")
        if spec["id"] == wire.DEADZONE:
            made = deadzone.encode(spec, x, residual, self.energy(x))
        else:
            made = _CODECS[spec["id"]][0](spec, x, residual, key, first)
        return _seal(spec, dtype, x.size, *made, out)

    def encode_stepped(
        self,
        spec: dict[str, Any],
        ends: np.ndarray,
        steps: np.ndarray,
        x: np.ndarray,
        residual: np.ndarray | None,
        dtype: int,
        out: np.ndarray,
    ) -> int:
        self._check_arguments(spec, x, residual, out)
        check_segments(ends, steps, x.size)
        return _seal(spec, dtype, x.size, *deadzone.encode_stepped(spec, ends, steps, x, residual), out)

    def encode_codes(
        self,
        spec: dict[str, Any],
        ends: np.ndarray,
        steps: np.ndarray,
        codes: np.ndarray,
        dtype: int,
        out: np.ndarray,
    ) -> int:
        self._check_arguments(spec, codes, None, out)
        check_segments(ends, steps, codes.size)
        return _seal(spec, dtype, codes.size, *deadzone.encode_codes(ends, steps, codes), out)

    def _check_arguments(
        self, spec: dict[str, Any], x: np.ndarray, residual: np.ndarray | None, out: np.ndarray
    ) -> None:
        size = self.max_encoded_size(spec, x.size)
        if residual is not None and residual.size != x.size:
            raise ValueError(f"residual has {residual.size} elements, expected {x.size}")
        if out.size < size:
            raise ValueError(f"out has {out.size} bytes, expected at least {size}")

    def status(
        self,
        spec: dict[str, Any],
        payload: np.ndarray,
        n: int,
        expected: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> int:
        """Return the gf_wire_status of a payload, by the same checks in the same order as the C++.

        `expected`: deadzone's ends and steps, where the payload must have these.
        """
        wire.check_spec(spec)
        if payload.size < wire.HEADER_BYTES:
            return wire.TRUNCATED
        h = wire.Header(*wire.LAYOUT.unpack(payload[: wire.HEADER_BYTES].tobytes()))
        bits, block_log2 = wire.CODECS[spec["id"]][1], spec["block"].bit_length() - 1
        size = payload.size - wire.HEADER_BYTES
        for wrong, status in (
            (h.magic != wire.MAGIC, wire.BAD_MAGIC),
            (h.version != wire.VERSION, wire.BAD_VERSION),
            ((h.codec, h.bits, h.block_log2) != (spec["id"], bits, block_log2), wire.BAD_CODEC),
            (h.count != n, wire.BAD_COUNT),
            (not wire.length_fits(spec, n, h.length, h.flags), wire.BAD_LENGTH),
            (size < h.length, wire.TRUNCATED),
            (size > h.length, wire.BAD_LENGTH),
        ):
            if wrong:
                return status
        unsigned = payload.copy()
        unsigned[28:32] = 0
        if common.crc32c(unsigned) != h.crc:
            return wire.BAD_CHECKSUM
        known = wire.FLAG_NONFINITE | wire.FLAG_STOCHASTIC * (spec["id"] not in wire.VARIABLE)
        known |= wire.FLAG_ENTROPY * (spec["id"] in wire.ENTROPY_CODED)
        if h.reserved or not 1 <= h.dtype <= 4 or h.flags & ~known:
            return wire.BAD_CONTENT
        if expected is not None:
            read = read_segments if h.flags & wire.FLAG_ENTROPY else read_tables
            tables = read(payload[wire.HEADER_BYTES :], n)
            if tables is not None and not tables.same_segments(*expected):
                return wire.BAD_CODEC
        body = _body(spec, payload, n)
        if body is None:
            return wire.BAD_CONTENT
        valid, nonfinite = _CODECS[spec["id"]][1](spec, body, n)
        if not valid or (nonfinite is not None and nonfinite != bool(h.flags & wire.FLAG_NONFINITE)):
            return wire.BAD_CONTENT
        return wire.OK

    def _values(self, spec: dict[str, Any], payload: np.ndarray, n: int) -> np.ndarray:
        wire.check(self.status(spec, payload, n), spec, payload, n)
        return _CODECS[spec["id"]][2](spec, _body(spec, payload, n), n)

    def decode(self, spec: dict[str, Any], payload: np.ndarray, out: np.ndarray) -> None:
        out[:] = self._values(spec, payload, out.size)

    def decode_add(self, spec: dict[str, Any], payload: np.ndarray, acc: np.ndarray) -> None:
        values = self._values(spec, payload, acc.size)
        if spec["id"] == wire.DEADZONE:
            deadzone.add(acc, values)
            return
        if spec["id"] == wire.TOPK:
            topk.add(acc, payload[wire.HEADER_BYTES :])
            return
        with np.errstate(all="ignore"):
            acc += values
        if wire.CODECS[spec["id"]][2]:  # a block that is not finite decodes to the canonical NaN
            acc[np.isnan(values)] = common.NAN

    def add_codes(
        self, spec: dict[str, Any], ends: np.ndarray, steps: np.ndarray, payload: np.ndarray, acc: np.ndarray
    ) -> None:
        check_segments(ends, steps, acc.size)
        wire.check(self.status(spec, payload, acc.size, (ends, steps)), spec, payload, acc.size)
        body = _body(spec, payload, acc.size)
        assert body is not None  # or its status would tell
        deadzone.add(acc, deadzone.codes(body, acc.size))

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
        squares = np.where(np.isfinite(x), x, 0).astype(np.float64) ** 2
        if squares.size == 0:
            return 0.0
        # In order, unlike np.sum: chunks of eight lanes, then 32 lanes of chunks.
        s = np.add.accumulate(
            common.to_blocks(squares, _ENERGY_CHUNK).reshape(-1, _ENERGY_CHUNK // 8, 8), axis=1
        )[:, -1]
        s = s[:, :4] + s[:, 4:]
        chunks = (s[:, 0] + s[:, 1]) + (s[:, 2] + s[:, 3])
        lanes = np.add.accumulate(common.to_blocks(chunks, _ENERGY_LANES), axis=0)[-1]
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        return float(lanes[0])

    def wavelet(
        self,
        x: np.ndarray,
        out: np.ndarray,
        name: str,
        levels: int,
        columns: int,
        inverse: bool,
        finite: bool,
    ) -> None:
        wavelet.check(x, out, name, levels, columns)
        transform = numpy_wavelet.inverse if inverse else numpy_wavelet.forward
        out[:] = transform(x, name, levels, columns, finite)

    def encode_indices(self, indices: np.ndarray, n: int, out: np.ndarray) -> int:
        check_indices(indices, n, out)
        code = topk.encode_indices(indices, n)
        out[: len(code)] = np.frombuffer(code, np.uint8)
        return len(code)

    def decode_indices(self, code: np.ndarray, n: int, out: np.ndarray) -> None:
        read = topk.decode_indices(code, n, out.size)
        check_index_code(read is not None and read[1] == code.size, code, n, out)
        assert read is not None
        out[:] = read[0]

    def crc32c(self, data: np.ndarray, crc: int = 0) -> int:
        return common.crc32c(data, crc)

    def dither_key(self, seed: int, rank: int, name_hash: int, sequence: int, stage: int) -> int:
        return common.dither_key(seed, rank, name_hash, sequence, stage)


def _entropy_stage(spec: dict[str, Any]) -> ModuleType:
    return deadzone_entropy if spec["id"] == wire.DEADZONE else code_entropy


def _body(spec: dict[str, Any], payload: np.ndarray, n: int) -> np.ndarray | None:
    """The body of a payload as the codecs read it; None where an entropy coded one is impossible."""
    body = payload[wire.HEADER_BYTES :]
    if not wire.Header.unpack(payload).flags & wire.FLAG_ENTROPY:
        return body
    packed = _entropy_stage(spec).unsqueeze(spec, body, n)
    return None if packed is None else np.frombuffer(packed, np.uint8)


def _seal(spec: dict[str, Any], dtype: int, n: int, body: bytes, nonfinite: bool, out: np.ndarray) -> int:
    """Write header and body; return the bytes of both."""
    flags = wire.FLAG_STOCHASTIC * spec["rounding"] + wire.FLAG_NONFINITE * bool(nonfinite)
    if entropy_of(spec["params"]):
        packed, body = body, _entropy_stage(spec).squeeze(spec, body, n)
        flags += wire.FLAG_ENTROPY * (body is not packed)
    bits, block_log2 = wire.CODECS[spec["id"]][1], spec["block"].bit_length() - 1
    fields = (wire.MAGIC, wire.VERSION, spec["id"], dtype, flags, block_log2, bits, n, len(body), 0)
    crc = common.crc32c(np.frombuffer(wire.Header(*fields, 0).pack() + body, np.uint8))
    payload = np.frombuffer(wire.Header(*fields, crc).pack() + body, np.uint8)
    out[: payload.size] = payload
    return payload.size


def _sum(sources: Sequence[np.ndarray]) -> np.ndarray:
    total = sources[0].copy()
    for source in sources[1:]:
        total += source
    return total
