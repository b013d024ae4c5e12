"""What the erasure code costs on one core: GB/s of source, in turns with a plain copy of the same bytes.

`python scripts/bench_ldpc.py --help`. For a core of its own: `taskset -c 0 python scripts/bench_ldpc.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np


def in_turns(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Return the median seconds of each; one after the other, so that a disturbance meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, call in ways.items():
            begun = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) for name, times in seconds.items()}


def measure(k: int, m: int, n1: int, symbol_bytes: int, loss: float, turns: int) -> dict[str, float]:
    """Return seconds for a block: copy, encode, decode (what arrived is copied, too)."""
    from hvd_gradflow.comm.ldpc import native

    code = native().Code(k, m, n1, 1)
    rng = np.random.default_rng(1)
    source = rng.integers(0, 256, (k, symbol_bytes), np.uint8)
    parity, out = np.zeros((m, symbol_bytes), np.uint8), np.zeros_like(source)
    code.encode(source, parity, symbol_bytes)
    symbols = np.vstack([source, parity])
    patterns = [(rng.random(k + m) >= loss).view(np.uint8) for _ in range(turns)]
    good = [p for p in patterns if code.decode(symbols, p, out) == 0]
    if not good:
        raise SystemExit(
            f"bench_ldpc: no block of k={k}, m={m} can be decoded at {loss:.0%} loss: use more parity"
        )
    turn = iter(range(10**9))

    def decode() -> None:
        if code.decode(symbols, good[next(turn) % len(good)], out):
            raise AssertionError("a block that could be decoded before")

    ways = {
        "copy": lambda: np.copyto(out, source),
        "encode": lambda: code.encode(source, parity, symbol_bytes),
        "decode": decode,
    }
    seconds = in_turns(ways, turns)
    if not np.array_equal(out, source):
        raise SystemExit("bench_ldpc: what was decoded is not what was encoded")
    return seconds


def main() -> None:
    from hvd_gradflow.comm.ldpc import native

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--k", type=int, nargs="+", default=[100, 256, 1000], help="source symbols")
    parser.add_argument(
        "--parity", type=float, nargs="+", default=[0.3, 0.225, 0.15], help="of each k, in parts of it"
    )
    parser.add_argument("--n1", type=int, default=7)
    parser.add_argument("--bytes", type=int, nargs="+", default=[1400], help="of a symbol")
    parser.add_argument(
        "--loss", type=float, nargs="+", default=[0.01, 0.1], help="of symbols, for the decoder"
    )
    parser.add_argument("--turns", type=int, default=300)
    arguments = parser.parse_args()
    print(f"level {native().simd_level()} of {', '.join(native().simd_levels())}; GB/s of source, medians")
    print("| k | m | bytes | loss | copy | encode | decode | encode / copy | decode / copy |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    parities = arguments.parity * (len(arguments.k) if len(arguments.parity) == 1 else 1)
    if len(parities) != len(arguments.k):
        parser.error("--parity: one for each k, or one for all")
    for k, parity in zip(arguments.k, parities):
        m = max(1, round(parity * k))
        for symbol_bytes in arguments.bytes:
            for loss in arguments.loss:
                s = measure(k, m, min(arguments.n1, m), symbol_bytes, loss, arguments.turns)
                copy, encode, decode = (
                    k * symbol_bytes / s[name] / 1e9 for name in ("copy", "encode", "decode")
                )
                print(
                    f"| {k} | {m} | {symbol_bytes} | {loss:.0%} | {copy:.1f} | {encode:.1f} | {decode:.1f} |"
                    f" {encode / copy:.2f} | {decode / copy:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
