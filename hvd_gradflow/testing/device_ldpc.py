"""The erasure code on a device: the bytes are those of the host."""

from __future__ import annotations

import numpy as np

from hvd_gradflow.comm.ldpc import LdpcStaircase
from hvd_gradflow.comm.ldpc_device import DeviceSchedule
from hvd_gradflow.testing.device_bench import Bench, same


def check_erasure_code(
    bench: Bench, code: LdpcStaircase, symbol_bytes: int, lost: list[int], skip: int = 0
) -> None:
    """Encode a block and decode it again on a device; its kernels are behind ``cuda/gpu_api.h``.

    Parameters
    ----------
    lost : list of int
        Symbols that do not arrive; the code must be able to bear it.
    skip : int
        Bytes by which the symbols' addresses are off from alignment.
    """
    rng = np.random.default_rng(symbol_bytes)
    source = rng.integers(0, 256, (code.k, symbol_bytes), np.uint8)
    symbols = np.vstack([source, code.encode(source)])

    def put(rows: np.ndarray) -> int:
        return bench.put(np.concatenate([np.zeros(skip, np.uint8), rows.reshape(-1)])) + skip

    def get(address: int, rows: int) -> np.ndarray:
        found = bench.get(address - skip, np.uint8, skip + rows * symbol_bytes)
        assert not found[:skip].any(), "a kernel wrote before the array"
        return found[skip:].reshape(rows, symbol_bytes)

    encoder = DeviceSchedule(code.encode_schedule(), bench.device)  # type: ignore[arg-type]
    scratch, parity = bench.room(encoder.scratch_bytes(symbol_bytes)), put(np.zeros_like(symbols[code.k :]))
    encoder.run(put(source), parity, symbol_bytes, scratch, bench.stream)
    same(get(parity, code.m), symbols[code.k :], f"parity of {code!r}")

    received = ~np.isin(np.arange(code.n), lost)
    sent = np.where(received[:, None], symbols, np.uint8(0x5A))
    decoder = DeviceSchedule(code.decode_schedule(received), bench.device)  # type: ignore[arg-type]
    scratch, at = bench.room(max(decoder.scratch_bytes(symbol_bytes), 1)), put(sent)
    decoder.run(at, at, symbol_bytes, scratch, bench.stream)
    after = get(at, code.n)
    same(after[: code.k], source, f"source of {code!r}, {lost} lost")
    same(after[code.k :], sent[code.k :], "parity, which a decoder leaves alone")
