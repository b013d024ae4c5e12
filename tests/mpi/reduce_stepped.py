"""deadzone's values on real ranks: equal everywhere, against NumPy, at the extremes. One OK line a check."""

from __future__ import annotations

import hashlib
import sys
import time

import numpy as np
import torch
from mpi4py import MPI

from hvd_gradflow import device
from hvd_gradflow.codec import get
from hvd_gradflow.reduce import Reducer, default_reducer

comm = MPI.COMM_WORLD
deadzone = get("deadzone")
# Whose bits do not depend on the home, and so not on the name.
FINE = deadzone(step=0.05, second="exact")
LARGEST = float(np.finfo(np.float32).max)
# Around a block, a group, the smallest chunk (4096) and several chunks.
LENGTHS = (0, 1, 31, 32, 33, 1023, 1024, 1025, 4095, 4097, 30000)


def check(name: str, ok) -> None:
    everyone = comm.allreduce(int(bool(ok)), op=MPI.MIN)
    if comm.rank == 0:
        print(f"{'OK' if everyone else 'FAILED'} {name}", flush=True)


def inputs(n: int, seed: int, dtype=np.float32) -> list[np.ndarray]:
    """What each rank gives, the same on all ranks."""
    return [np.random.default_rng(seed + 1000 * r).laplace(size=n).astype(dtype) for r in range(comm.size)]


def sha(array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def same_everywhere(*arrays) -> bool:
    return len(set(comm.allgather([sha(a) for a in arrays].__repr__()))) == 1


def similarity(got, expected) -> float:
    got, expected = np.float64(got).ravel(), np.float64(expected).ravel()
    if not got.any() or not expected.any():
        return float(not got.any() and not expected.any())
    return float(got @ expected / (np.linalg.norm(got) * np.linalg.norm(expected)))


def lengths(r: Reducer) -> None:
    for second in ("exact", "requantize", "auto"):
        for control in ({"similarity": 0.98}, {"target_ratio": 6.0}, {"step": 0.3}):
            codec, good = deadzone(second=second, **control), True
            handles = {
                n: r.allreduce_async(inputs(n, n)[comm.rank], f"{codec} {n}", codec=codec) for n in LENGTHS
            }
            got = {n: handle.wait(60) for n, handle in handles.items()}
            good &= same_everywhere(*got.values())
            for n in LENGTHS:
                good &= got[n].shape == (n,) and got[n].dtype == np.float32
                good &= n < 1000 or similarity(got[n], np.mean(inputs(n, n), axis=0)) > 0.8
            check(f"lengths {second} {next(iter(control))}", good)


def kinds(r: Reducer) -> None:
    for dtype in (np.float16, np.float64):
        parts = inputs(3000, 7, dtype)
        got = r.allreduce(parts[comm.rank], f"{np.dtype(dtype)}", codec=FINE)
        want = r.allreduce(parts[comm.rank].astype(np.float32), f"{np.dtype(dtype)} 32", codec=FINE)
        good = got.dtype == dtype and np.array_equal(got, want.astype(dtype)) and same_everywhere(got)
        check(
            f"{np.dtype(dtype)}", good and similarity(got, np.mean(parts, axis=0, dtype=np.float64)) > 0.998
        )
    half = torch.from_numpy(inputs(3000, 7)[comm.rank]).bfloat16()
    got = r.allreduce(half, "bf16", codec=FINE)
    want = r.allreduce(half.float(), "bf16 32", codec=FINE)
    want = torch.from_numpy(want).bfloat16().view(torch.int16).numpy().view(np.uint16)
    check("bfloat16", got.dtype == np.uint16 and np.array_equal(got, want))
    base = inputs(2400, 5)[comm.rank].reshape(40, 60)
    for name, view in {
        "t": base.T,
        "column": base[:, 3],
        "channels": base.reshape(2, 20, 60).transpose(2, 0, 1),
    }.items():
        got = r.allreduce(view, f"layout {name}", codec=FINE)
        want = r.allreduce(np.ascontiguousarray(view), f"layout {name} packed", codec=FINE)
        check(f"layout {name}", got.shape == view.shape and np.array_equal(got, want))
    parts = inputs(5000, 1)
    plain = r.allreduce(parts[comm.rank], "average", codec=FINE)
    total = r.allreduce(parts[comm.rank], "sum", op="sum", codec=FINE)
    check("sum", np.array_equal(total, plain * np.float32(comm.size)) and same_everywhere(total))
    # A power of two moves all steps alike, so the bits too.
    scaled = r.allreduce(parts[comm.rank], "scaled", codec=FINE, prescale=0.25, postscale=4.0)
    check("prescale and postscale", np.array_equal(scaled, plain))


def nodes_parts(r: Reducer, parts: list[np.ndarray]) -> list[np.ndarray]:
    """What each node encodes: its ranks' inputs over the number of ranks, added in order."""
    scale, sums = np.float32(1.0 / comm.size), []
    for node in r.nodes:
        total = parts[node[0]] * scale
        for rank in node[1:]:
            total = total + parts[rank] * scale
        sums.append(total)
    return sums


def step_of(multiple: float, energy: float, n: int) -> np.float32:
    return np.float32(multiple * np.sqrt(energy / n))


def quantized(v: np.ndarray, step: np.float32) -> np.ndarray:
    """The integers of blocks that are not shifted."""
    inverse = np.float32(1) / step
    return np.copysign(np.trunc(np.abs(v) * inverse + np.float32(deadzone.offset)), v).astype(np.float32)


def exactly(r: Reducer) -> None:
    """second="exact" against NumPy over several steps, under many names: each is at home elsewhere."""
    names = [f"at home {i}" for i in range(2 * r.node_count * max(map(len, r.nodes)))]
    for n in (1000, 4000, 20000):
        codec = deadzone(step=0.5, second="exact")
        owed = [np.zeros(n, np.float32) for _ in r.nodes]
        kernels, energy, good, alike = device.backend(), None, True, True
        for k in range(4):
            parts = inputs(n, 17 * k + n)
            sums = nodes_parts(r, parts)
            if energy is None:
                scale = 1.0 / comm.size
                energy = sum(kernels.energy(p) * scale * scale for p in parts)
            step = step_of(0.5 / np.sqrt(r.node_count), energy, n)
            codes = []
            for i, part in enumerate(sums):
                v = part + owed[i]
                codes.append(quantized(v, step))
                owed[i] = v - codes[i] * step
            expected = np.sum(codes, axis=0, dtype=np.float32) * step
            # A quarter of the way, in the logarithm.
            energy *= np.sqrt(np.sqrt(sum(kernels.energy(s) for s in sums) / energy))
            handles = [r.allreduce_async(parts[comm.rank], f"{name} {n}", codec=codec) for name in names]
            got = [h.wait(60) for h in handles]
            alike &= all(np.array_equal(g, got[0]) for g in got)
            # Of several chunks the energies are added in another order than here.
            good &= np.array_equal(got[0], expected) or (
                n > 4096 and np.allclose(got[0], expected, rtol=1e-6)
            )
        check(f"exact as in NumPy {n}", good and same_everywhere(*got))
        check(f"exact wherever it is at home {n}", alike)


def agreed_names(r: Reducer) -> None:
    """The same name with other sizes, options, codecs, domains; the residual goes on."""
    n, good, total, sent = 6000, True, np.zeros(6000), 0.0
    normalized = deadzone(domain="normalized")
    codecs = [deadzone(step=0.5), deadzone(similarity=0.9), get("int4"), normalized,
              normalized, get("int4"), normalized, deadzone(step=2.0)]  # fmt: skip
    for k, codec in enumerate(codecs):
        parts = inputs(n, k)
        sent = sent + np.mean(parts, axis=0, dtype=np.float64)
        got = r.allreduce(parts[comm.rank], "changing", codec=codec)
        good &= same_everywhere(got) and np.isfinite(got).all()
        total += got
    owed = r.residual_state()["changing"]
    check("owed and paid across codecs", good and np.allclose(total + owed, sent, atol=2e-5))
    for size in (6000, 100, 5000, 0, 5000):
        got = r.allreduce(inputs(size, size)[comm.rank], "sizes", codec=deadzone(step=0.1))
        good &= got.size == size and same_everywhere(got)
        good &= size < 1000 or similarity(got, np.mean(inputs(size, size), axis=0)) > 0.98
    check("other sizes", good)


def nonfinite(r: Reducer) -> None:
    for second in ("exact", "requantize"):
        for domain in ("energy", "normalized"):
            codec, name = deadzone(second=second, domain=domain), f"sick {second} {domain}"
            parts = inputs(5000, 3)
            for _ in range(3):
                r.allreduce(parts[comm.rank], name, codec=codec)
            before, good = r.residual_state()[name], True
            for poison in (np.inf, np.nan):
                bad = parts[comm.rank].copy()
                if comm.rank == comm.size - 1:
                    bad[17] = poison
                got = r.allreduce(bad, name, codec=codec)
                good &= (
                    not np.isfinite(got[:32]).any() and np.isfinite(got[32:]).all() and same_everywhere(got)
                )
            after = r.residual_state()[name]
            good &= (
                np.allclose(before, after, rtol=1e-5, atol=1e-7)
                if domain == "normalized"
                else np.array_equal(before, after)
            )
            got = r.allreduce(parts[comm.rank], name, codec=codec)
            good &= similarity(got, np.mean(parts, axis=0)) > 0.95 and same_everywhere(got)
            check(f"non-finite {second} {domain}", good)
    first = inputs(5000, 4)[comm.rank].copy()
    if comm.rank == 0:
        first[:] = np.nan
    good = not np.isfinite(r.allreduce(first, "sick at once", codec=deadzone)).any()
    for _ in range(2):
        got = r.allreduce(inputs(5000, 4)[comm.rank], "sick at once", codec=deadzone)
    check("non-finite at first", good and similarity(got, np.mean(inputs(5000, 4), axis=0)) > 0.95)


def extremes(r: Reducer) -> None:
    good = True
    for second in ("exact", "requantize"):
        for domain in ("energy", "normalized"):
            codec, total, sent = deadzone(second=second, domain=domain), 0.0, 0.0
            for k in range(4):  # the largest there is, all ranks alike, then all the other way
                x = np.full(3000, LARGEST if k % 2 else -LARGEST, np.float32)
                got = r.allreduce(x, f"largest {second} {domain}", codec=codec)
                good &= np.isfinite(got).all() and (k > 0 or (got / x > 0.8).all()) and same_everywhere(got)
            for k in range(24):
                parts = inputs(3000, k)
                if k == 5:
                    for part in parts:
                        part *= 1e-9
                if k == 4:
                    parts[0][100] = 1e30
                sent = sent + np.mean(parts, axis=0, dtype=np.float64)
                got = r.allreduce(parts[comm.rank], f"spike {second} {domain}", codec=codec)
                good &= np.isfinite(got).all() and same_everywhere(got)
                total = total + np.float64(got)
            others = np.arange(3000) != 100
            good &= similarity(got[others], np.mean(parts, axis=0)[others]) > 0.9
            owed = np.float64(r.residual_state()[f"spike {second} {domain}"])
            gap = np.abs(total + owed - sent)[others]
            check(f"spike loses nothing {second} {domain}", domain == "normalized" or gap.max() < 1e-4)
            good &= bool(abs(total[100] + owed[100] - sent[100]) < 1e25)
    check("finite at the extremes", good)
    for tiny in (1e-30, 1e-40):
        parts = [p * np.float32(tiny) for p in inputs(4000, 1)]
        got = r.allreduce(parts[comm.rank], f"tiny {tiny}", codec=deadzone(step=0.5))
        check(f"tiny {tiny}", similarity(got, np.mean(parts, axis=0, dtype=np.float64)) > 0.9)


def sets(_: Reducer) -> None:
    mine = [q for q in range(comm.size) if q % 2 == comm.rank % 2]
    r, parts = default_reducer(mine), inputs(5000, 2)
    for _ in range(2):
        got = r.allreduce(parts[comm.rank], "w", codec=deadzone(step=0.2))
    check("process sets", similarity(got, np.mean([parts[q] for q in mine], axis=0)) > 0.99)


def uncollected(r: Reducer) -> None:
    """Residuals asked for between the end of a reduction and its wait."""
    codec, parts = FINE(domain="normalized", step=0.2), inputs(4000, 6)
    for _ in range(3):
        want = r.allreduce(parts[comm.rank], "in time", codec=codec)
        handle = r.allreduce_async(parts[comm.rank], "late", codec=codec)
        while not handle.done():
            time.sleep(0.001)
        r.residual_state()
        got = handle.wait()
    check("uncollected", np.allclose(got, want, rtol=1e-5, atol=1e-6) and same_everywhere(got))


def backends(r: Reducer) -> None:
    """Prints what the test compares between backends."""
    parts, results = inputs(1500, 8), []
    for second in ("exact", "requantize"):
        for control in ({"similarity": 0.98}, {"target_ratio": 6.0}, {"step": 0.3, "domain": "normalized"}):
            for _ in range(3):
                results.append(
                    r.allreduce(
                        parts[comm.rank], f"{second} {control}", codec=deadzone(second=second, **control)
                    )
                )
    check("equal", same_everywhere(*results))
    if comm.rank == 0:
        print("BITS", sha(np.concatenate(results)), flush=True)


PARTS = {
    f.__name__: f for f in (lengths, kinds, exactly, agreed_names, nonfinite, extremes, sets, uncollected)
}
with Reducer(comm) as reducer:
    for part in sys.argv[1:] or PARTS:
        {**PARTS, "backends": backends}[part](reducer)
    if comm.rank == 0:
        print(f"nodes {reducer.nodes}", flush=True)
