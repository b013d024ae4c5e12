"""PowerSGD in streams, against the algorithm in NumPy: ranks, residuals, plans, NaN, joins, extremes."""

from __future__ import annotations

import hashlib
import os
import time

import numpy as np
from common import check, raises, run
from mpi4py import MPI

from hvd_gradflow.codec import get, low_rank
from hvd_gradflow.codec.policy import Policy
from hvd_gradflow.errors import ConfigError, WaitTimeout
from hvd_gradflow.reduce import Reducer, TensorSpec
from hvd_gradflow.reduce.layout import digest

comm = MPI.COMM_WORLD
rng = np.random.default_rng(5 + comm.rank)
SPECS = [
    TensorSpec("conv", (64, 8, 3, 3), "float32", "conv"),
    TensorSpec("last", (3, 3, 8, 64), "float32", "conv"),
    TensorSpec("half", (60, 50), "float16", "dense"),
    TensorSpec("double", (50, 80), "float64", "dense"),
    TensorSpec("large", (350, 600), "float32", "dense"),
    TensorSpec("bias", (2000,), "float32", "vector"),
]
NAMES = [s.name for s in SPECS]
CODEC = get("powersgd", rank=3, seed=11)


class Simulated:
    """Algorithm 1 and 2 of the paper for all ranks at once, in float64; with one node the mean."""

    def __init__(self, nodes: int, codec=CODEC) -> None:
        self.codec, self.encodes = codec, nodes > 1
        self.q: dict[str, np.ndarray] = {}
        self.e: dict[str, np.ndarray] = {}

    def step(self, name: str, gradients: list[np.ndarray]) -> np.ndarray:
        given = [g.astype(np.float64) for g in gradients]
        mean = np.mean(given, axis=0)
        if not self.encodes or not self.codec.takes(mean.shape):
            return mean
        rows, columns = low_rank.matrix_shape(mean.shape)
        if name not in self.q:
            self.q[name] = low_rank.drawn(self.codec.rank, columns, self.codec.seed, digest(name)).T
            self.e[name] = np.zeros((len(given), rows, columns))
        m = np.stack([g.reshape(rows, columns) for g in given]) + self.e[name]
        p, _ = np.linalg.qr(np.mean(m @ self.q[name], axis=0))
        self.q[name] = np.mean(np.swapaxes(m, 1, 2) @ p, axis=0)
        result = p @ self.q[name].T
        if self.codec.error_feedback:
            self.e[name] = m - result
        return result.reshape(mean.shape)

    def owed(self, name: str) -> np.ndarray:
        return np.mean(self.e[name], axis=0)


def gradients(names=NAMES) -> dict[str, np.ndarray]:
    """This rank's; their mean has a few strong directions and much noise, as gradients have."""
    shapes = {s.name: s for s in SPECS}
    made = {}
    for n in names:
        common = np.random.default_rng(digest(n) % 1000).standard_normal(shapes[n].shape)
        made[n] = (common * 0.3 + rng.standard_normal(shapes[n].shape)).astype(shapes[n].dtype)
    return made


def step(stream, grads, shuffle=False, names=None):
    names = list(names or grads)
    mine = np.random.default_rng(comm.rank)
    if shuffle:
        mine.shuffle(names)
    handles = {n: stream.submit(n, grads[n]) for n in names}
    if shuffle:
        mine.shuffle(names)
    return {n: handles[n].wait() for n in names}


def error(got: np.ndarray, expected: np.ndarray) -> float:
    norm = float(np.linalg.norm(expected))
    return (
        float(np.linalg.norm(np.asarray(got, np.float64).ravel() - expected.ravel())) / norm if norm else 0.0
    )


def same(arrays) -> bool:
    h = hashlib.sha256()
    for name in sorted(arrays):
        h.update(np.ascontiguousarray(arrays[name]).tobytes())
    return len(set(comm.allgather(h.hexdigest()))) == 1


def bound(name: str) -> float:
    return 1e-3 if name == "half" else 2e-5


@check
def it_is_the_algorithm(r):
    for codec in (CODEC, CODEC(error_feedback=False, rank=1)):
        stream, model = (
            r.stream(SPECS, codec, scope=f"algorithm {codec.rank}"),
            Simulated(r.node_count, codec),
        )
        for k in range(6):
            grads = gradients()
            got = step(stream, grads, shuffle=k > 0)
            assert same(got), k
            for s in SPECS:
                assert got[s.name].shape == s.shape and got[s.name].dtype == s.dtype
                expected = model.step(s.name, comm.allgather(grads[s.name]))
                assert error(got[s.name], expected) < bound(s.name), (k, s.name, error(got[s.name], expected))
        state = stream.residual_state()
        assert same(state) and bool(state) == codec.error_feedback
        for n in model.e if state else ():
            assert error(state[n], model.owed(n)) < 1e-4, n
        taken = {n: c.name for n, c in stream.codecs().items()}
        assert taken.pop("bias") == "none" and set(taken.values()) == {"powersgd"}
        stream.close()


@check
def a_constant_gradient_is_approximated_best(r):
    if r.node_count == 1:
        return
    stream = r.stream(SPECS[:1], CODEC(error_feedback=False), scope="constant")
    fixed = gradients(["conv"])
    mean = np.mean(comm.allgather(fixed["conv"].astype(np.float64)), axis=0)
    for _ in range(60):
        got = step(stream, fixed)["conv"]
    best = np.sqrt((np.linalg.svd(mean.reshape(64, 72))[1][3:] ** 2).sum()) / np.linalg.norm(mean)
    assert best * 0.99999 < error(got, mean) < best * 1.005, (best, error(got, mean))
    stream.close()


@check
def sum_of_results_is_the_sum_of_gradients(r):
    for op, pre, post in (
        ("average", 1.0, 1.0),
        ("sum", 1.0, 1.0),
        ("average", 0.25, 4.0),
        ("sum", 1.0, 0.5),
    ):
        scope = f"telescope {op} {pre} {post}"
        stream = r.stream(SPECS, CODEC, scope=scope, op=op, prescale=pre, postscale=post)
        scale = pre * post * (r.size if op == "sum" else 1)
        total, given = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
        for _ in range(4):
            grads = gradients()
            for n, g in step(stream, grads).items():
                total[n] = total[n] + g.astype(np.float64)
                given[n] = given[n] + scale * np.mean(comm.allgather(grads[n].astype(np.float64)), axis=0)
        # What is owed is in units of the average, before the factor that follows it.
        after = post * (r.size if op == "sum" else 1)
        state = stream.residual_state()
        for n in NAMES:
            owed = state[n].astype(np.float64) * after if state else 0.0
            assert error(total[n] + owed, given[n]) < 2e-3 if n == "half" else 2e-5, (scope, n)
        stream.close()


@check
def missing_tensors(r):
    stream, model = r.stream(SPECS, CODEC, scope="partial"), Simulated(r.node_count)
    for names in (["large"], ["conv", "bias", "large"], NAMES, ["half", "double"], NAMES):
        grads = gradients(names)
        got = step(stream, grads, shuffle=True)
        for n in names:
            assert error(got[n], model.step(n, comm.allgather(grads[n]))) < bound(n), (names, n)
    stream.close()


@check
def not_finite_on_one_rank(r):
    stream, model = r.stream(SPECS, CODEC, scope="sick"), Simulated(r.node_count)
    for k, bad in enumerate([None, np.nan, np.inf, -np.inf, None]):
        grads = gradients()
        before = stream.residual_state()
        if k == 1:
            stream.load_residual_state(before)  # all of it owed, none held
        everyone = {n: comm.allgather(grads[n]) for n in NAMES}
        if bad is not None and comm.rank == comm.size - 1:
            grads["large"][3, 5] = bad
        got = step(stream, grads)
        for n in NAMES:
            if n == "large" and bad is not None:
                assert not np.isfinite(got[n]).all() if r.node_count == 1 else np.isnan(got[n]).all()
                continue
            assert error(got[n], model.step(n, everyone[n])) < bound(n), (k, n)
        after = stream.residual_state()
        if bad is not None and r.node_count > 1:
            assert np.array_equal(before["large"], after["large"]), k
        assert all(np.isfinite(v).all() for v in after.values())
    stream.close()


class Moving(Policy):
    """Changes its mind after every step."""

    wants_statistics = True

    def __init__(self):
        self.rounds = 0

    def fresh(self):
        return Moving()

    def table(self):
        kinds = (CODEC, get("int8"), get("powersgd", rank=2), get("none"))
        return {n: kinds[(self.rounds + i) % 4] for i, n in enumerate(self.names)}

    def start(self, specs, importance, min_elements):
        self.names = [s.name for s in specs]
        return self.table()

    def update(self, statistics):
        self.rounds += 1
        return self.table()


@check
def plans_and_loads(r):
    stream = r.stream(SPECS, Moving(), scope="moving")
    names = ["conv", "large"]
    total, given = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)

    def steps(stream, count):
        for _ in range(count):
            grads = gradients()
            got = step(stream, grads, shuffle=True)
            assert same(got)
            for n in names:
                total[n] = total[n] + got[n].astype(np.float64)
                given[n] = given[n] + np.mean(comm.allgather(grads[n].astype(np.float64)), axis=0)

    def whole(stream):
        state = stream.residual_state()
        assert same(state)
        assert all(error(total[n] + state[n], given[n]) < 2e-5 for n in names), "something was lost"
        return state

    steps(stream, 9)
    state = whole(stream)
    loaded = r.stream(SPECS, CODEC, scope="loaded")
    loaded.load_residual_state(state)
    assert r.node_count == 1 or all(error(loaded.residual_state()[n], state[n]) < 1e-6 for n in names)
    steps(loaded, 3)
    whole(loaded)
    plain = r.stream(SPECS, CODEC(error_feedback=False), scope="loaded without")
    plain.load_residual_state(loaded.residual_state())
    bad = gradients(["conv"])
    if comm.rank == 0:
        bad["conv"][0] = np.nan
    step(plain, bad)  # what is owed must be owed still
    if r.node_count > 1:
        assert plain._residuals.owes("conv")
        step(plain, gradients(["conv"]))
        assert not plain._residuals.owes("conv")
    for s in (stream, loaded, plain):
        s.close()


@check
def any_scale(r):
    specs = [TensorSpec("w", (40, 50)), TensorSpec("v", (60, 70))]
    # Under `none`, as on one node, sums of the largest numbers are infinite.
    for scale in (1e-45, 1e-40, 1e-30, 1e30, 3.4e38)[: 5 if r.node_count > 1 else 4]:
        stream = r.stream(specs, CODEC, scope=f"scale {scale}")
        for k in range(4):
            unit = np.random.default_rng(k).uniform(-1, 1, (40, 1)) * np.random.default_rng(k + 9).uniform(
                -1, 1, 50
            )
            w = (unit * scale).astype(np.float32)
            v = np.clip(rng.standard_normal((60, 70)) * scale, -3.4e38, 3.4e38).astype(np.float32)
            got = step(stream, {"w": w, "v": v})
            assert same(got) and all(np.isfinite(g).all() for g in got.values()), (scale, k)
            if scale > 1e-38:  # of rank one, and the same everywhere: nothing is lost
                assert error(got["w"] / np.float32(scale), w.astype(np.float64) / scale) < 1e-5, (scale, k)
        if scale < 1e38:  # the sum of what all ranks owe may be more than that
            assert all(np.isfinite(e).all() for e in stream.residual_state().values())
        stream.close()


@check
def zeros_do_not_stop_it(r):
    stream = r.stream(SPECS[4:5], CODEC, scope="zeros")
    got = step(stream, {"large": np.zeros((350, 600), np.float32)})["large"]
    assert not got.any() and not any(e.any() for e in stream.residual_state().values())
    low = (np.arange(350.0)[:, None] @ np.arange(600.0)[None]).astype(np.float32)
    for _ in range(2):
        assert error(step(stream, {"large": low})["large"], low.astype(np.float64)) < 1e-5
    # Another direction after one of lower rank.
    low += (np.arange(350.0)[::-1, None] @ np.ones((1, 600))).astype(np.float32)
    for _ in range(3):
        got = step(stream, {"large": low})["large"]
    assert error(got, low.astype(np.float64)) < 1e-4
    stream.close()


@check
def polling_and_timeouts(r):
    stream, model = r.stream(SPECS, CODEC, scope="polling"), Simulated(r.node_count)
    grads = gradients()
    everyone = {n: comm.allgather(g) for n, g in grads.items()}
    comm.Barrier()
    if comm.rank == comm.size - 1 and comm.size > 1:
        time.sleep(0.3)
    handles = {n: stream.submit(n, grads[n]) for n in reversed(NAMES)}
    if comm.rank == 0 and comm.size > 1:
        with raises(WaitTimeout, "'large'"):
            handles["large"].wait(timeout=0.02)
    until = time.monotonic() + 30
    while not handles["large"].done():  # the last one of its bucket, which was sent with it
        assert time.monotonic() < until
        time.sleep(0.001)
    out = np.zeros((350, 600), np.float32)
    assert handles["large"].wait(out=out) is out
    assert error(out, model.step("large", everyone["large"])) < bound("large")
    for h in handles.values():
        h.wait()
    stream.close()


@check
def waits_between_submits(r):
    """Two buckets: one rank waits for the first before it submits the second, the others submit both."""
    stream = r.stream([SPECS[4], TensorSpec("other", (500, 500))], CODEC, scope="between")
    grads = {"large": gradients(["large"])["large"], "other": np.ones((500, 500), np.float32)}
    if comm.rank == 0:
        got = {n: stream.submit(n, grads[n]).wait(timeout=30) for n in ("large", "other")}
    else:
        handles = {n: stream.submit(n, grads[n]) for n in ("large", "other")}
        got = {n: handles[n].wait(timeout=30) for n in ("other", "large")}
    assert same(got)
    stream.close()


@check
def joins(r):
    """Rank k has k + 1 batches; what all ranks gave arrives, or is owed."""
    stream = r.stream(SPECS[4:], CODEC, scope="joining")
    total, given = 0.0, np.zeros((350, 600))
    handles = None
    for k in range(comm.rank + 1):
        grads = gradients(["large", "bias"])
        given += grads["large"]
        handles = {n: stream.submit(n, g) for n, g in grads.items()}
        if k < comm.rank or comm.rank % 2:
            total = total + handles["large"].wait().astype(np.float64)
            handles["bias"].wait()
    last = r.join(30)  # half of the ranks have not waited for their last step
    assert last == comm.size - 1
    if comm.rank % 2 == 0:
        total = total + handles["large"].wait().astype(np.float64)
        handles["bias"].wait()
    everything = comm.bcast(total, comm.size - 1)  # which has seen all steps
    owed = stream.residual_state().get("large", 0.0)
    mean = comm.allreduce(given) / comm.size
    assert error(everything + owed, mean) < 2e-5, error(everything + owed, mean)
    got = step(stream, gradients(["large", "bias"]))
    assert same(got)
    stream.close()


@check
def process_sets(r):
    mine = [q for q in range(comm.size) if q % 2 == comm.rank % 2]
    group = comm.Split(comm.rank % 2)
    with Reducer(group, name=f"set {comm.rank % 2}") as reducer:
        stream, model = reducer.stream(SPECS, CODEC, scope="set"), Simulated(reducer.node_count)
        for _ in range(2):
            grads = gradients()
            got = step(stream, grads)
            for n in NAMES:
                assert error(got[n], model.step(n, group.allgather(grads[n]))) < bound(n), (mine, n)
        stream.close()


@check
def bytes_and_refusals(r):
    stream = r.stream(SPECS[:5], CODEC, scope="bytes")
    before = r.counters()
    steps = 3
    for _ in range(steps):
        step(stream, gradients(NAMES[:5]))
    counts = {k: comm.allreduce(v - before[k]) for k, v in r.counters().items()}
    if r.node_count > 1:
        # Each factor crosses the network twice for each node but one.
        ways = 2 * (r.node_count - 1) * steps
        sizes = [low_rank.matrix_shape(s.shape) for s in SPECS[:5]]
        factors = ways * sum(1 + 3 * (rows + columns) for rows, columns in sizes) * 4
        assert factors < counts["wire_bytes"] < factors * 1.2 + 4000 * r.size, (factors, counts)
        whole = ways * sum(s.elements for s in SPECS[:5]) * 4
        assert whole < counts["wire_bytes_uncompressed"] < whole * 1.05 + 4000 * r.size, (whole, counts)
        assert counts["wire_bytes"] * 30 < counts["wire_bytes_uncompressed"]
    stream.close()
    with raises(ConfigError, "max_staleness=1: a step begins with"):
        r.stream(SPECS, CODEC, scope="stale", max_staleness=1)
    alone = r.allreduce(gradients(["large"])["large"], "alone", codec=CODEC)
    assert alone.shape == (350, 600)


if __name__ == "__main__":
    with Reducer(comm) as reducer:
        run(comm.rank, comm.Barrier, os.environ.get("ONLY", "").split(), reducer)
