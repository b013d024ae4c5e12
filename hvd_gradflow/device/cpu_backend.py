"""The compiled backend: C++ kernels through Cython."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_gradflow.device import wavelet as waves
from hvd_gradflow.device import wire
from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.device.base import Backend
from hvd_gradflow.device.native import kernels
from hvd_gradflow.device.wire_topk import check_index_code, check_indices


class CpuBackend(Backend):
    """Thin over ``hvd_gradflow.device._kernels``; the GIL is released while a kernel runs."""

    name = "cpu"

    def __init__(self) -> None:
        self._k = kernels()

    def describe(self) -> str:
        return f"compiled, {self._k.simd_level()} (of {', '.join(self._k.simd_levels())})"

    def max_encoded_size(self, spec: dict[str, Any], n: int) -> int:
        return self._k.max_encoded_size(spec, n)

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
        return self._k.encode(spec, x, residual, key, first, dtype, out)

    def decode(self, spec: dict[str, Any], payload: np.ndarray, out: np.ndarray) -> None:
        wire.check(self._k.decode(spec, payload, out, False), spec, payload, out.size)

    def decode_add(self, spec: dict[str, Any], payload: np.ndarray, acc: np.ndarray) -> None:
        wire.check(self._k.decode(spec, payload, acc, True), spec, payload, acc.size)

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
        return self._k.encode_stepped(spec, ends, steps, x, residual, dtype, out)

    def add_codes(
        self, spec: dict[str, Any], ends: np.ndarray, steps: np.ndarray, payload: np.ndarray, acc: np.ndarray
    ) -> None:
        wire.check(self._k.add_codes(spec, ends, steps, payload, acc), spec, payload, acc.size)

    def encode_codes(
        self,
        spec: dict[str, Any],
        ends: np.ndarray,
        steps: np.ndarray,
        codes: np.ndarray,
        dtype: int,
        out: np.ndarray,
    ) -> int:
        return self._k.encode_codes(spec, ends, steps, codes, dtype, out)

    def load_f32(self, source: ArrayView, out: np.ndarray) -> bool:
        return self._k.load_f32(source.address, source.dtype, out)

    def store_f32(self, src: np.ndarray, scale: float, target: ArrayView) -> None:
        self._k.store_f32(src, scale, target.address, target.dtype)

    def sum_f32(self, out: np.ndarray, sources: Sequence[np.ndarray], scale: float) -> None:
        self._k.sum_f32(out, list(sources), scale)

    def sum_f64(self, out: np.ndarray, sources: Sequence[np.ndarray], scale: float) -> None:
        self._k.sum_f64(out, list(sources), scale)

    def energy(self, x: np.ndarray) -> float:
        return self._k.energy(x)

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
        waves.check(x, out, name, levels, columns)
        extents = waves.extents(x.size, levels, columns)
        self._k.wavelet(x, out, waves.TAPS[name], levels, *extents, columns, inverse, finite)

    def encode_indices(self, indices: np.ndarray, n: int, out: np.ndarray) -> int:
        check_indices(indices, n, out)
        return self._k.encode_indices(indices, n, out)

    def decode_indices(self, code: np.ndarray, n: int, out: np.ndarray) -> None:
        check_index_code(self._k.decode_indices(code, n, out), code, n, out)

    def crc32c(self, data: np.ndarray, crc: int = 0) -> int:
        return self._k.crc32c(data, crc)

    def dither_key(self, seed: int, rank: int, name_hash: int, sequence: int, stage: int) -> int:
        return self._k.dither_key(seed, rank, name_hash, sequence, stage)
