"""Streams with steps under way (max_staleness): order, bounds, overlap, and that nothing owed is lost."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
from common import check, raises, run
from mpi4py import MPI
from reduce_streams import Moving, digest, error

from hvd_gradflow.codec import get
from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.errors import ConfigError, GradflowError
from hvd_gradflow.reduce import Reducer, TensorSpec

comm = MPI.COMM_WORLD
rng = np.random.default_rng(21 + comm.rank)
SPECS = [TensorSpec("a", (3000,)), TensorSpec("b", (40, 50)), TensorSpec("c", (7,)), TensorSpec("d", (9000,))]
LOSSY = ("a", "b", "d")  # "c" is small, and goes uncompressed
CODECS = {
    "none": "none",
    "int4": "int4",
    "deadzone": "deadzone",
    "normalized": get("deadzone", domain="normalized"),
}


def gradients(names="abcd"):
    return {s.name: rng.standard_normal(s.shape).astype("float32") for s in SPECS if s.name in names}


def mean_of(grads):
    return {n: np.mean(comm.allgather(g.astype(np.float64)), axis=0) for n, g in grads.items()}


def same(arrays) -> bool:
    return len(set(comm.allgather(digest(arrays)))) == 1


def staged(stream, steps, names=lambda t: "abcd"):
    """Yield (inputs' mean, result) of each step in order, each waited for as late as is allowed."""
    under_way = deque()
    for t in range(steps):
        grads = gradients(names(t))
        order = list(grads)
        np.random.default_rng([comm.rank, t]).shuffle(order)
        under_way.append((mean_of(grads), {n: stream.submit(n, grads[n]) for n in order}))
        stream.advance()
        if len(under_way) > stream.max_staleness:
            expected, handles = under_way.popleft()
            yield expected, {n: h.wait() for n, h in handles.items()}
    for expected, handles in under_way:
        yield expected, {n: h.wait() for n, h in handles.items()}


def paid(pairs, names=LOSSY):
    """The sums of inputs and of results, and whether all results were the same everywhere."""
    wanted, got, equal = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), True
    for expected, result in pairs:
        equal &= same(result)
        for n in set(names) & set(result):
            wanted[n], got[n] = wanted[n] + expected[n], got[n] + result[n]
    return wanted, got, equal


def telescopes(stream, pairs) -> None:
    wanted, got, equal = paid(pairs)
    state = stream.residual_state()
    assert equal, "results differ between ranks"
    for n in LOSSY:
        gap = error(got[n] + state.get(n, 0), wanted[n])
        assert gap < 1e-5, f"{n}: {gap}"


@check
def each_step_has_its_own_result(r):
    for k in (1, 2):
        stream = r.stream(SPECS, "none", scope=f"order {k}", max_staleness=k)
        for expected, result in staged(stream, 7):
            assert same(result)
            assert all(error(result[n], expected[n]) < 1e-6 for n in result)
        stream.close()


@check
def what_is_owed_is_paid(r):
    for name, codec in CODECS.items():
        stream = r.stream(SPECS, codec, scope=f"owed {name}", max_staleness=2)
        telescopes(stream, staged(stream, 12))
        stream.close()


@check
def residuals_while_steps_are_under_way(r):
    """The state counts all that was sent, waited for or not; and a state can be loaded then."""
    for name, codec in CODECS.items():
        stream = r.stream(SPECS, codec, scope=f"state {name}", max_staleness=1)
        pairs = staged(stream, 9)
        first = [next(pairs) for _ in range(4)]
        state = stream.residual_state()  # the fifth step is under way
        wanted, got, _ = paid([*first, next(pairs)])
        assert all(error(got[n] + state.get(n, 0), wanted[n]) < 1e-5 for n in LOSSY), name
        stream.load_residual_state(state)  # the sixth is, and pays the rest of what was owed before
        next(pairs)
        wanted, got, equal = paid(pairs)
        after = stream.residual_state()
        assert equal
        for n in LOSSY:
            assert error(got[n] + after.get(n, 0), wanted[n] + state.get(n, 0)) < 1e-5, (name, n)
        stream.close()


@check
def one_too_many_is_refused(r):
    stream = r.stream(SPECS, "int8", scope="bound", max_staleness=1)
    handles = []
    for _ in range(2):
        handles += [stream.submit(s.name, np.ones(s.shape, np.float32)) for s in SPECS]
        with raises(GradflowError, "'a' is already under way in this step", "advance()"):
            stream.submit("a", np.ones(3000, np.float32))
        stream.advance()
    with raises(GradflowError, "'a'", "2 steps are under way, and max_staleness is 1"):
        stream.submit("a", np.ones(3000, np.float32))
    for h in handles:
        h.wait()
    stream.submit("a", np.ones(3000, np.float32)).wait()
    stream.close()
    with raises(ConfigError, "max_staleness=-1"):
        r.stream(SPECS, scope="negative", max_staleness=-1)


@check
def a_late_rank_does_not_hold_up_the_step_before(r):
    """The last rank submits step 1 only once all others have the result of step 0, with step 1 sent."""
    stream = r.stream(SPECS, "int8", scope="late", max_staleness=1)
    late = comm.rank == comm.size - 1
    ones = {s.name: np.ones(s.shape, np.float32) for s in SPECS}
    first = [stream.submit(n, g) for n, g in ones.items()]
    stream.advance()
    if late:
        for other in range(comm.size - 1):
            comm.recv(source=other)
    second = [stream.submit(n, g) for n, g in ones.items()]
    stream.advance()
    for h in first:
        h.wait(30)
    if not late:
        comm.send(None, dest=comm.size - 1)
    for h in second:
        h.wait(30)
    stream.close()


@check
def missing_gradients(r):
    """Whole buckets and parts of them take turns; each follows the other."""
    names = lambda t: ("abcd", "ad", "b", "abcd", "", "c", "abcd")[t % 7]  # noqa: E731
    for name in ("int4", "normalized"):
        stream = r.stream(SPECS, CODECS[name], scope=f"missing {name}", max_staleness=2)
        telescopes(stream, staged(stream, 14, names))
        stream.close()


@check
def plans_change(r):
    policy = Moving()
    stream = r.stream(SPECS, policy, scope="moving", max_staleness=1)
    telescopes(stream, staged(stream, 12))
    seen = stream._policy.seen
    assert len(set(comm.allgather(repr(seen)))) == 1
    assert stream._planning.number > 3
    if r.node_count > 1:
        assert any(seen)
    stream.close()
    for k in (1, 2):
        policy = as_policy("adaptive", warmup=2, window=2, target_ratio=6.0)
        stream = r.stream(SPECS, policy, scope=f"adaptive {k}", max_staleness=k)
        telescopes(stream, staged(stream, 16))
        stream.close()


@check
def not_finite(r):
    """What was folded into a step that came to nothing is owed again, also before that is waited for."""
    stream = r.stream(SPECS, "int4", scope="sick", max_staleness=1)
    list(staged(stream, 3))
    before = stream.residual_state()
    stream.load_residual_state(before)  # all of it owed, none held
    sick = gradients()
    if comm.rank == 0:
        for n in LOSSY:
            sick[n].flat[5] = np.nan
    handles = {n: stream.submit(n, g) for n, g in sick.items()}
    stream.advance()
    after = stream.residual_state()
    assert all(error(after[n], before[n]) < 1e-6 for n in LOSSY)
    results = {n: h.wait() for n, h in handles.items()}
    assert all(np.isnan(results[n]).any() for n in LOSSY) and np.isfinite(results["c"]).all()
    wanted, got, equal = paid(staged(stream, 3))
    state = stream.residual_state()
    assert equal and all(error(got[n] + state[n], wanted[n] + before[n]) < 1e-5 for n in LOSSY)
    stream.close()


@check
def ranks_join_with_steps_under_way(r):
    """Rank q has q + 2 steps, and joins while its last ones are under way, or not even announced."""
    for k in (1, 3):
        stream = r.stream(SPECS, "int8", scope=f"joining {k}", max_staleness=k)
        for _ in range(2):
            steps = comm.rank + 2
            handles = deque()
            for t in range(steps):
                for s in SPECS:
                    handles.append((t, stream.submit(s.name, np.ones(s.shape, np.float32))))
                stream.advance()
                while handles and handles[0][0] + k <= t:
                    expect(*handles.popleft())
            assert r.join(60) == comm.size - 1
            for t, handle in handles:
                expect(t, handle)
        stream.close()


def expect(t, handle) -> None:
    """In step t rank q takes part if it has more than t steps; the others add zeros."""
    share = sum(q + 2 > t for q in range(comm.size)) / comm.size
    got = handle.wait(30)
    assert np.allclose(got, share, rtol=0.02), (t, share, got.ravel()[:3])


if __name__ == "__main__":
    with Reducer(comm) as reducer:
        run(comm.rank, comm.Barrier, sys.argv[1:], reducer)
