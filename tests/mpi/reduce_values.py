"""Values of the reducer against a local sum: dtypes, shapes, ops, codecs, lengths. One OK line a check."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from mpi4py import MPI

from hvd_gradflow.codec import get
from hvd_gradflow.reduce import Reducer, TensorSpec

comm = MPI.COMM_WORLD
LENGTHS = (0, 1, 2, 3, 7, 1023, 1024, 1025, 2305, 104729)
TOLERANCE = {"none": 1e-6, "bf16": 0.02, "fp16": 2e-3, "int8": 0.02, "int4": 0.3, "int2": 2.0, "log4": 0.5,
             "sign1": 1.2, "topk": 1.2}  # fmt: skip


def inputs(n: int, seed: int, dtype=np.float32) -> list[np.ndarray]:
    return [np.random.default_rng(seed + 1000 * r).standard_normal(n).astype(dtype) for r in range(comm.size)]


def same_everywhere(array: np.ndarray) -> bool:
    hashes = comm.allgather(hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())
    return len(set(hashes)) == 1


def close(got, expected, tolerance: float) -> bool:
    if not got.size:
        return True
    scale = max(float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))), 1e-30)
    return bool(np.sqrt(np.mean(np.square(got.astype(np.float64) - expected))) <= tolerance * scale)


def check(name: str, ok: bool) -> None:
    everyone = comm.allreduce(int(bool(ok)), op=MPI.MIN)
    if comm.rank == 0:
        print(f"{'OK' if everyone else 'FAILED'} {name}", flush=True)


def same_in_fewer_bytes(r: Reducer, x: np.ndarray, codec: str) -> bool:
    """Whether entropy coded payloads give the same result, and are shorter where something is sent."""
    results, sent = [], [r.counters()["wire_bytes"]]
    for entropy in (False, True):  # under one name: it decides which node is a chunk's home
        chosen = get(codec, entropy=entropy, error_feedback=False)
        results.append(r.allreduce(x, f"{codec} {x.size} twice", codec=chosen))
        sent.append(r.counters()["wire_bytes"])
    plain, coded = np.diff(comm.allreduce(np.array(sent)))
    return np.array_equal(*results) and (coded < plain if r.node_count > 1 else coded == plain == 0)


def lengths(r: Reducer) -> None:
    for codec, tolerance in TOLERANCE.items():
        good = True
        for n in LENGTHS:
            parts = inputs(n, n)
            got = r.allreduce(parts[comm.rank], f"{codec} {n}", codec=codec)
            good &= close(got, np.mean(parts, axis=0, dtype=np.float64), tolerance) and same_everywhere(got)
            good &= got.shape == (n,) and got.dtype == np.float32
            if "entropy" in get(codec).options() and 1000 < n < 10_000:
                good &= same_in_fewer_bytes(r, parts[comm.rank], codec)
        check(f"lengths {codec}", good)


def operations(r: Reducer) -> None:
    parts = inputs(5000, 1)
    total = np.sum(parts, axis=0, dtype=np.float64)
    for codec in ("none", "int8"):
        got = r.allreduce(parts[comm.rank], f"sum {codec}", op="sum", codec=codec)
        check(f"sum {codec}", close(got, total, TOLERANCE[codec]))
        got = r.allreduce(
            parts[comm.rank], f"pre {codec}", op="sum", codec=codec, prescale=0.5, postscale=2.0 / comm.size
        )
        check(f"predivide {codec}", close(got, total / comm.size, TOLERANCE[codec]))
    hundred = np.full(64, 100, np.float32)
    wrapped = r.allreduce(hundred, "wrap", op="sum", codec="int8")
    check("int8 does not wrap", np.allclose(wrapped, hundred * comm.size, rtol=1e-6, atol=0))
    large = np.full(64, 60000, np.float16)
    check("fp16 average", np.array_equal(r.allreduce(large, "large", codec="fp16"), large))
    check("log4 keeps halves finite", np.isfinite(r.allreduce(large, "half", codec="log4")).all())
    large32 = large.astype(np.float32)
    check("fp16 sum", np.array_equal(r.allreduce(large32, "l2", op="sum", codec="fp16"), large32 * comm.size))


def kinds(r: Reducer) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        parts = inputs(3000, 7, dtype)
        got = r.allreduce(parts[comm.rank], f"dtype {np.dtype(dtype)}")
        expected = np.mean(parts, axis=0, dtype=np.float64)
        tolerance = {np.float16: 1e-3, np.float32: 1e-6, np.float64: 1e-15}[dtype]
        check(f"dtype {np.dtype(dtype)}", got.dtype == dtype and close(got, expected, tolerance))
    parts = inputs(3000, 7, np.float64)
    got = r.allreduce(parts[comm.rank], "f64 int8", codec="int8")
    check("float64 under int8", got.dtype == np.float64 and close(got, np.mean(parts, axis=0), 0.02))
    base = np.random.default_rng(5 + comm.rank).standard_normal((40, 60)).astype(np.float32)
    layouts = {
        "t": base.T,
        "column": base[:, 3],
        "channels": base.reshape(2, 20, 6, 10).transpose(0, 2, 3, 1),
    }
    for name, view in layouts.items():
        got = r.allreduce(view, f"layout {name}")
        want = r.allreduce(np.ascontiguousarray(view), f"layout {name} packed")
        check(f"layout {name}", got.shape == view.shape and np.array_equal(got, want))
    scalar = r.allreduce(np.float32(comm.rank + 1).reshape(()), "scalar", op="sum", codec="int8")
    check("0-d", scalar.shape == () and abs(float(scalar) - sum(range(1, comm.size + 1))) < 0.1)
    into = np.zeros(100, np.float32)
    r.allreduce(np.full(100, comm.rank, np.float32), "out", out=into)
    check("out", np.allclose(into, np.mean(range(comm.size))))
    huge = np.full(300, 2e38, np.float32)
    check("no overflow on the way", np.allclose(r.allreduce(huge, "huge", codec="int8"), huge, rtol=0.01))
    try:
        r.allreduce(np.arange(3), "ints")
        check("integers refused", False)
    except TypeError as error:
        check("integers refused", "int64" in str(error))


def feedback(r: Reducer) -> None:
    parts = inputs(20000, 3)
    mean = np.mean(parts, axis=0, dtype=np.float64)
    for codec in ("int4", "log4", "int2", "sign1"):
        steps = 25
        total = sum(
            r.allreduce(parts[comm.rank], f"ef {codec}", codec=codec).astype(np.float64) for _ in range(steps)
        )
        check(
            f"error feedback {codec}", close(total / steps, mean, 0.4 if codec in ("int2", "sign1") else 0.15)
        )


def many(r: Reducer) -> None:
    """Submitted in another order on every rank; sizes far apart; all reduced."""
    sizes = {f"m{i}": n for i, n in enumerate((250_000, 3_000_000, 250_000, 10, 70_000, 1))}
    order = list(sizes)
    np.random.default_rng(comm.rank).shuffle(order)
    handles = {
        n: r.allreduce_async(np.full(sizes[n], comm.rank + 1, np.float32), n, codec="log4") for n in order
    }
    expected = np.mean(range(1, comm.size + 1))
    # Rounded twice to a power of two, each time by up to a third.
    check("any order", all(np.allclose(handles[n].wait(30), expected, rtol=0.8) for n in sizes))
    again = handles["m0"].wait()
    check("wait twice", again.size == sizes["m0"])


def nonfinite(r: Reducer, codec: str = "int4") -> None:
    good, name = inputs(4096, 9)[comm.rank], f"sick {codec}"
    for _ in range(3):
        r.allreduce(good, name, codec=codec)
    before = r.residual_state()[name]
    bad = good.copy()
    if comm.rank == comm.size - 1:
        bad[17] = np.inf
    got = r.allreduce(bad, name, codec=codec)
    after = r.residual_state()[name]
    check(f"non-finite everywhere {codec}", not np.isfinite(got).all() and same_everywhere(got))
    check(f"residual kept {codec}", np.array_equal(before, after) and np.isfinite(after).all())
    check(f"next step clean {codec}", np.isfinite(r.allreduce(good, name, codec=codec)).all())


def sparse_sums(r: Reducer) -> None:
    """topk: the exact sum, in order of node, of what each node sends by the codec itself."""
    codec, n, good = get("topk", ratio=0.02), 900, True
    owed = [np.zeros(n, np.float32) for _ in r.nodes]
    for step in range(5):
        parts = inputs(n, 70 + step)
        total = np.zeros(n, np.float32)
        for node, ranks in enumerate(r.nodes):
            v = np.zeros(n, np.float32)
            for rank in ranks:
                v += parts[rank] * np.float32(1 / comm.size)
            total += codec.decode(codec.encode(v, residual=owed[node])) if r.node_count > 1 else v
        got = r.allreduce(parts[comm.rank], "sparse", codec=codec)
        good &= np.array_equal(got, total) and same_everywhere(got)
    check("topk sums exactly what was sent", good)
    owing = np.sum(owed, axis=0) if r.node_count > 1 else np.zeros(n)
    _near_the_largest_float(r)
    check("topk owes the rest", np.allclose(r.residual_state().get("sparse", 0), owing, atol=1e-6))
    # A stream of which every rank has the same gradients: as many arrive as one sends.
    codec, seen = get("topk", ratio=0.01, warmup_steps=3), []
    stream = r.stream([TensorSpec("w", (1024,), "float32", "dense")], codec, scope="warm")
    for step in range(5):
        handle = stream.submit("w", np.random.default_rng(step).standard_normal(1024).astype(np.float32))
        seen.append(np.count_nonzero(handle.wait()))
    expected = [math.ceil(codec.at_step(step).ratio * 1024) for step in range(5)]
    check("topk warms up", seen == (expected if r.node_count > 1 else [1024] * 5))


def _near_the_largest_float(r: Reducer) -> None:
    """What is owed grows until it is sent: the sum of finite values is finite, and infinity still shows."""
    codec, most = get("topk", ratio=0.01), np.finfo(np.float32).max
    x, good = np.full(1000, most, np.float32), True
    for _ in range(3):
        got = r.allreduce(x, "largest", codec=codec)
        good &= bool(np.isfinite(got).all()) and same_everywhere(got)
    check("topk stays finite", good and np.array_equal(got[got != 0], np.full(np.count_nonzero(got), most)))
    stream = r.stream(
        [TensorSpec("w", (300_000,), "float32", "dense")], codec, scope="in place", in_place=True
    )
    for step in range(3):  # nobody looks at its inputs
        x = np.full(300_000, most, np.float32)
        if step == 1 and comm.rank == comm.size - 1:
            x[5] = np.inf
        got = stream.submit("w", x).wait()
        good &= bool(np.isfinite(got).all()) == (step != 1) and same_everywhere(got)
    check("topk hides no infinity", good)


with Reducer(comm) as reducer:
    for part in (lengths, operations, kinds, feedback, many, nonfinite, sparse_sums):
        part(reducer)
    for name in ("sign1", "topk"):
        nonfinite(reducer, name)
    counters = reducer.counters()
    check("counters", (counters["wire_bytes"] > 0) == (reducer.node_count > 1))
    if comm.rank == 0:
        print(f"nodes {reducer.nodes}", flush=True)
