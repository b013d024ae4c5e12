"""Streams of gradients: buckets, partial buckets, residuals across plans and loads, policies, joins."""

from __future__ import annotations

import hashlib
import tempfile

import numpy as np
from mpi4py import MPI

from hvd_gradflow.analyze import recording
from hvd_gradflow.analyze.record import Recorder
from hvd_gradflow.codec import get
from hvd_gradflow.codec.policy import Policy
from hvd_gradflow.errors import GradflowError
from hvd_gradflow.reduce import Reducer, TensorSpec, default_reducer

comm = MPI.COMM_WORLD
rng = np.random.default_rng(11 + comm.rank)
SPECS = [
    TensorSpec("conv", (64, 3, 3, 3), "float32", "conv"),
    TensorSpec("half", (300, 70), "float16", "dense"),
    TensorSpec("double", (5000,), "float64", "vector"),
    TensorSpec("large", (350, 600), "float32", "dense"),
    TensorSpec("bias", (10,), "float32", "vector"),
    TensorSpec("empty", (0, 4), "float32", "other"),
    TensorSpec("scalar", (), "float32", "other"),
]


def check(name: str, ok) -> None:
    everyone = comm.allreduce(int(bool(ok)), op=MPI.MIN)
    if comm.rank == 0:
        print(f"{'OK' if everyone else 'FAILED'} {name}", flush=True)


def gradients() -> dict[str, np.ndarray]:
    return {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in SPECS}


def mean_of(grads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n: np.mean(comm.allgather(g.astype(np.float64)), axis=0) for n, g in grads.items()}


def error(got: np.ndarray, expected: np.ndarray) -> float:
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(got.astype(np.float64) - expected)) / norm if norm else 0.0


def step(stream, grads, names=None, shuffle=False):
    names = list(grads) if names is None else list(names)
    if shuffle:
        np.random.default_rng(comm.rank).shuffle(names)
    handles = {n: stream.submit(n, grads[n]) for n in names}
    return {n: h.wait() for n, h in handles.items()}


def digest(arrays) -> str:
    h = hashlib.sha256()
    for name in sorted(arrays):
        h.update(np.ascontiguousarray(arrays[name]).tobytes())
    return h.hexdigest()


def buckets(r: Reducer) -> None:
    for codec, bound in {"none": 1e-3, "int8": 0.02, "log4": 0.5}.items():
        stream = r.stream(SPECS, codec, scope=f"buckets {codec}")
        good = True
        for k in range(3):
            grads = gradients()
            expected = mean_of(grads)
            got = step(stream, grads, shuffle=k > 0)
            good &= all(got[s.name].shape == s.shape and got[s.name].dtype == s.dtype for s in SPECS)
            good &= all(error(got[n], expected[n]) <= bound for n in grads)
            good &= len(set(comm.allgather(digest(got)))) == 1
            if codec == "none":
                good &= error(got["double"], expected["double"]) < 1e-14
        check(f"bucket values {codec}", good)
        small = {n: c.name for n, c in stream.codecs().items()}
        check(f"small ones uncompressed {codec}", small["bias"] == "none" and small["large"] == codec)
        stream.close()


def partial(r: Reducer) -> None:
    stream = r.stream(SPECS, "int8", scope="partial")
    for names in (["large"], ["conv", "large"], [s.name for s in SPECS], ["half"]):
        grads = gradients()
        expected = mean_of(grads)
        got = step(stream, grads, names, shuffle=True)
        check(f"partial {len(names)}", all(error(got[n], expected[n]) < 0.02 for n in names))
    out = np.zeros((350, 600), np.float32)
    handle = stream.submit("large", grads["large"])
    refused = False
    try:
        stream.submit("large", grads["large"])
    except GradflowError as failure:
        refused = "'large' is already under way" in str(failure)
    check("twice in a step refused", refused)
    check("out", handle.wait(out=out) is out and error(out, expected["large"]) < 0.02)
    stream.close()


def telescopes(r: Reducer) -> None:
    """With error feedback the sum over steps is the sum of the inputs, less what is still owed."""
    stream = r.stream(SPECS[:4], "int4", scope="telescope")
    grads = {n: g for n, g in gradients().items() if n in ("conv", "half", "double", "large")}
    grads["half"] = (grads["half"] / 8).astype(np.float16)
    expected = mean_of(grads)
    total = {n: np.zeros(g.shape) for n, g in grads.items()}
    for _ in range(6):
        for n, g in step(stream, grads).items():
            total[n] += g
    state = stream.residual_state()
    gap = max(error(total[n] + state[n], 6 * expected[n]) for n in ("conv", "large"))
    check("owed and paid make the whole", gap < 1e-5)
    check("something is owed", r.node_count == 1 or np.abs(state["large"]).max() > 0)
    check("state equal on all ranks", len(set(comm.allgather(digest(state)))) == 1)
    other = r.stream(SPECS[:4], "int4", scope="loaded")
    other.load_residual_state(state)
    check("state survives a load", error(other.residual_state()["large"], state["large"]) < 1e-6)
    for n, g in step(other, grads).items():
        total[n] += g
    after = other.residual_state()
    check("load then step", error(total["large"] + after["large"], 7 * expected["large"]) < 1e-5)
    stream.close()
    other.close()


class Moving(Policy):
    """Changes its mind after every step."""

    wants_statistics = True

    def __init__(self):
        self.rounds = 0
        self.seen: list[dict] = []

    def fresh(self):
        return Moving()

    def table(self):
        names = ("int8", "log4", "int4")
        return {n: get(names[(self.rounds + i) % 3]) for i, n in enumerate(self.names)}

    def start(self, specs, importance, min_elements):
        self.names = [s.name for s in specs]
        return self.table()

    def update(self, statistics):
        self.rounds += 1
        self.seen.append(statistics)
        return self.table()


def moving(r: Reducer) -> None:
    stream = r.stream(SPECS[:2] + SPECS[3:4], Moving(), scope="moving")
    grads = {n: g for n, g in gradients().items() if n in ("conv", "half", "large")}
    expected = mean_of(grads)
    total = np.zeros(grads["large"].shape)
    for _ in range(7):
        total += step(stream, grads)["large"]
    state = stream.residual_state()["large"]
    check("residuals survive new plans", error(total + state, 7 * expected["large"]) < 1e-5)
    seen = stream._policy.seen
    check("statistics equal on all ranks", len(set(comm.allgather(repr(seen)))) == 1)
    if r.node_count > 1:
        gradient, residual = seen[-1]["large"]
        size = grads["large"].size
        check(
            "statistics plausible",
            0.2 / r.size < gradient / size / r.node_count < 2 and 0 < residual < gradient,
        )
    else:
        check("statistics plausible", not seen[-1])
    stream.close()


def adaptive(r: Reducer) -> None:
    stream = r.stream(SPECS, "adaptive", scope="adaptive")
    ok = True
    for _ in range(12):
        grads = gradients()
        expected = mean_of(grads)
        got = step(stream, grads)
        ok &= all(error(got[n], expected[n]) < 0.4 for n in ("conv", "large", "half"))
        ok &= len(set(comm.allgather(digest(got)))) == 1
    check("adaptive", ok and stream.codecs()["bias"].name == "none")
    stream.close()


def sick(r: Reducer) -> None:
    stream = r.stream(SPECS[:4], "int4", scope="sick")
    grads = {n: g for n, g in gradients().items() if n in ("conv", "half", "double", "large")}
    step(stream, grads)
    before = stream.residual_state()
    stream.load_residual_state(before)  # all of it owed, none held
    bad = {n: g.copy() for n, g in grads.items()}
    if comm.rank == comm.size - 1:
        bad["conv"][3, 1, 1, 1] = np.nan
    got = step(stream, bad)
    after = stream.residual_state()
    check("one sick tensor", np.isnan(got["conv"]).any() and np.isfinite(got["large"]).all())
    check("residuals as before", all(error(after[n], before[n]) < 1e-6 for n in ("conv", "large")))
    check("clean again", all(np.isfinite(g).all() for g in step(stream, grads).values()))
    stream.close()


def in_place(r: Reducer) -> None:
    """Large gradients are read, and results written, where they lie; the rest is as without."""
    specs = [TensorSpec("a", (600, 500)), TensorSpec("small", (3000,)), TensorSpec("b", (300_001,))]
    for codec, bound in {"none": 1e-6, "int4": 0.3, "deadzone": 0.5}.items():
        stream = r.stream(specs, codec, scope=f"in place {codec}", in_place=True)
        good = True
        for k in range(4):
            grads = {s.name: rng.standard_normal(s.shape).astype(np.float32) for s in specs}
            expected = mean_of(grads)
            if k == 2:  # owed, not held, by rank 0 only, which has to copy then
                stream.load_residual_state(stream.residual_state())
            handles = {n: stream.submit(n, g) for n, g in grads.items()}
            got = {n: h.wait(out=grads[n] if k else None) for n, h in handles.items()}
            good &= all((got[n] is grads[n]) == (k > 0) and got[n].shape == expected[n].shape for n in got)
            good &= all(error(got[n], expected[n]) <= bound for n in got)
            good &= len(set(comm.allgather(digest(got)))) == 1
        check(f"in place {codec}", good)
        before = stream.residual_state()
        bad = {s.name: rng.standard_normal(s.shape).astype(np.float32) for s in specs}
        if comm.rank == comm.size - 1:
            bad["a"][300, 7] = np.inf
        got = step(stream, bad)
        clean = not np.isfinite(got["a"]).all() and np.isfinite(got["b"]).all()
        after = stream.residual_state()
        clean &= not before or np.array_equal(before["a"], after["a"])
        ones = {s.name: np.ones(s.shape, np.float32) for s in specs}
        check(
            f"in place, sick {codec}",
            clean and all(np.isfinite(g).all() for g in step(stream, ones).values()),
        )
        stream.close()


def joining(r: Reducer) -> None:
    """Rank k has k + 1 batches."""
    stream = r.stream(SPECS[3:4], "int8", scope="joining")
    ok = True
    for k in range(comm.rank + 1):
        got = step(stream, {"large": np.full((350, 600), 1.0, np.float32)})["large"]
        ok &= np.allclose(got, (comm.size - k) / comm.size, rtol=0.02)
    if comm.rank == comm.size - 1:  # a name that the ranks which have joined never meet
        r.allreduce(np.ones(2000, np.float32) / 3, "late", codec="int4")
    last = r.join(30)
    late = r.residual_state()["late"]
    check("names that a rank never met", late.shape == (2000,))
    check("joined ranks add zeros", ok)
    check("last to join", last == comm.size - 1)
    got = step(stream, {"large": np.full((350, 600), 2.0, np.float32)})["large"]
    check("after the join", np.allclose(got, 2.0, rtol=0.02))
    stream.close()


def sets(_: Reducer) -> None:
    mine = [q for q in range(comm.size) if q % 2 == comm.rank % 2]
    r = default_reducer(mine)
    got = r.allreduce(np.full(5000, comm.rank, np.float32), "w", codec="int8")
    check("process sets", np.allclose(got, np.mean(mine), rtol=0.02) and r is default_reducer(mine))
    world = default_reducer()
    check("world", np.allclose(world.allreduce(np.ones(3, np.float32), "w", op="sum"), comm.size))


def recorded(r: Reducer) -> None:
    """Norms of what each rank had and of their average, whatever the operation, and under staleness."""
    directory = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    r.recorder = recorder = Recorder(directory, 1, comm.rank, 65536)
    expected = {}
    for op, stale in (("average", 0), ("sum", 1)):
        stream = r.stream(SPECS, "none", scope=f"recorded {op}", op=op, max_staleness=stale)
        own, mean, due = [], [], []
        for _ in range(4):
            grads = gradients()
            own.append(comm.allgather([float((g.astype(np.float64) ** 2).sum()) for g in grads.values()]))
            mean.append([float((m**2).sum()) for m in mean_of(grads).values()])
            due.append([stream.submit(n, g) for n, g in grads.items()])
            stream.advance()
            if len(due) > stale:
                for handle in due.pop(0):
                    handle.wait()
        for handle in (h for step in due for h in step):
            handle.wait()
        expected[f"recorded {op}"] = own, mean
        stream.close()
    r.recorder = None
    recorder.close()
    comm.Barrier()
    good = {name: True for name in expected}
    if comm.rank == 0:
        for stream in recording.read(directory)[0]:
            own, mean = expected[stream.scope]
            names = [layer.name for layer in stream.layers]
            ok = names == [s.name for s in SPECS] and stream.ranks == comm.size and len(stream.reduced) == 4
            for step in range(4):
                local = [stream.local[step][q] for q in range(comm.size)]
                ok &= np.allclose(local, own[step], rtol=1e-6)
                ok &= np.allclose(stream.reduced[step], mean[step], rtol=2e-3)
            good[stream.scope] = (
                ok and {"conv", "large"} <= stream.statistics[0].keys() and 1 in stream.cosines
            )
    for name, ok in good.items():
        check(name, ok)


if __name__ == "__main__":
    with Reducer(comm) as reducer:
        for part in (buckets, partial, telescopes, moving, adaptive, sick, in_place, joining, recorded, sets):
            part(reducer)
