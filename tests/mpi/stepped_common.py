"""What the programs on deadzone in the engine share."""

from __future__ import annotations

import hashlib

import numpy as np
from mpi4py import MPI

from hvd_gradflow.codec import get
from hvd_gradflow.reduce import Reducer, TensorSpec

comm = MPI.COMM_WORLD
deadzone = get("deadzone")


def check(name: str, ok, why: object = "") -> None:
    everyone = comm.allreduce(int(bool(ok)), op=MPI.MIN)
    if comm.rank == 0:
        print(f"{'OK' if everyone else 'FAILED'} {name} {'' if everyone else why}", flush=True)


def digest(arrays) -> str:
    h = hashlib.sha256()
    for name in sorted(arrays):
        h.update(np.ascontiguousarray(arrays[name]).tobytes())
    return h.hexdigest()


def same_everywhere(arrays) -> bool:
    return len(set(comm.allgather(digest(arrays)))) == 1


SIZES = {"large": 6000, "small": 1500, "tiny": 2000, "huge": 3000}
SCALES = {"large": 1.0, "small": 1e-6, "tiny": 1e-3, "huge": 1e4}


def gradients(step: int, sizes=SIZES, scales=SCALES, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Of all ranks, the same on all of them: half of it common, as gradients are."""
    everyone, common = [], np.random.default_rng([seed, step, 99])
    shared = {n: common.laplace(size=size) for n, size in sizes.items()}
    for rank in range(comm.size):
        rng = np.random.default_rng([seed, step, rank])
        own = {n: rng.laplace(size=size) for n, size in sizes.items()}
        everyone.append({n: ((shared[n] + own[n]) * scales[n]).astype(np.float32) for n in sizes})
    return everyone


def mean(everyone) -> dict[str, np.ndarray]:
    return {n: np.mean([g[n] for g in everyone], axis=0, dtype=np.float64) for n in everyone[0]}


def specs(sizes=SIZES):
    return [TensorSpec(n, (size,), "float32", "dense") for n, size in sizes.items()]


def step(stream, everyone, names=None):
    handles = {n: stream.submit(n, everyone[comm.rank][n]) for n in names or everyone[0]}
    return {n: h.wait(60) for n, h in handles.items()}


def cosine(a, b) -> float:
    """Cosine; nothing is like nothing only."""
    if not np.any(a) or not np.any(b):
        return float(not np.any(a) and not np.any(b))
    return float(np.dot(np.float64(a), b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def traffic(r: Reducer) -> np.ndarray:
    counters = r.counters()
    mine = np.array([counters["wire_bytes"], counters["wire_bytes_uncompressed"]])
    return comm.allreduce(mine)
