"""The policy auto on streams: the same profile and choice on all ranks, joins, ranks that disagree."""

from __future__ import annotations

import sys

import numpy as np
from common import check, raises, run
from mpi4py import MPI

from hvd_gradflow import events
from hvd_gradflow.codec import get
from hvd_gradflow.codec.policy import AutoPolicy
from hvd_gradflow.codec.profile import Fit, Profile
from hvd_gradflow.errors import MismatchError
from hvd_gradflow.reduce import Reducer, TensorSpec

comm = MPI.COMM_WORLD
SPECS = [
    TensorSpec("large", (300, 700), "float32", "dense"),
    TensorSpec("double", (40, 50), "float64", "dense"),
    TensorSpec("norm", (3000,), "float32", "vector"),
    TensorSpec("bias", (10,), "float32", "vector"),
]
said: list[dict] = []
events.subscribe(lambda kind, fields: said.append(fields) if kind == "auto" else None)


def gradients(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * seed + comm.rank)
    return {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in SPECS}


def step(stream, grads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    handles = {name: stream.submit(name, g) for name, g in reversed(grads.items())}
    return {name: handle.wait(timeout=60) for name, handle in handles.items()}


def equal(value: object) -> bool:
    return len(set(comm.allgather(repr(value)))) == 1


def close_to_mean(got: dict[str, np.ndarray], grads: dict[str, np.ndarray]) -> bool:
    for name, g in grads.items():
        mean = comm.allreduce(g.astype(np.float64)) / comm.size
        if np.linalg.norm(got[name] - mean) > 0.4 * np.linalg.norm(mean):
            return False
    return True


@check
def agreement(r: Reducer) -> None:
    """All hold the same numbers, though each measured its own; streams of a reducer share them."""
    said.clear()
    stream = r.stream(SPECS, "auto", scope="one")
    profile = r.prober.profile
    assert (profile is None) == (r.node_count == 1)
    assert equal(profile) and equal({n: c.name for n, c in stream.codecs().items()})
    if profile is None:
        assert {c.name for c in stream.codecs().values()} == {"none"}
    else:
        assert {c.name for c in profile.fits} == {"none", "fp16", "int8", "log4", "deadzone"}
        assert profile.cost < 20
    sent = r.counters()
    assert (sent["probe_bytes"] > 100_000) == (profile is not None)
    assert sent["wire_bytes"] < 100_000 and sent["units"] < 10
    other = r.stream(SPECS, "auto", scope="two")
    assert r.prober.profile is profile
    assert [len(said), *comm.allgather(len(said))[1:]] == [2 if comm.rank == 0 else 0, *[0] * (comm.size - 1)]
    for k in range(3):
        grads = gradients(k)
        assert close_to_mean(step(stream, grads), grads)
        assert close_to_mean(step(other, grads), grads)
    stream.close()
    other.close()
    assert set(r.streams) == set()


@check
def drifting(r: Reducer) -> None:
    """Another profile on all ranks makes another table at the end of one round; the sums stay whole."""
    if r.node_count == 1:
        return
    stream = r.stream(SPECS, AutoPolicy(allow=("none", "int4")), scope="drifting")
    none, int4 = get("none"), get("int4")
    total, seen = np.zeros((300, 700)), []
    grads = gradients()
    for k in range(6):
        cheap = int4 if k % 2 == 0 else none
        r.prober.profile = Profile({c: Fit(0.0, 1e-9 if c == cheap else 1e-8) for c in (none, int4)})
        total += step(stream, grads)["large"]
        seen.append(stream.codecs()["large"].name)
    assert seen == ["int4", "none"] * 3
    owed = stream.residual_state().get("large", 0.0)
    whole = 6 * comm.allreduce(grads["large"].astype(np.float64)) / comm.size
    assert np.linalg.norm(total + owed - whole) < 1e-5 * np.linalg.norm(whole)
    stream.close()
    r.prober.profile = None


@check
def slowing_down(r: Reducer) -> None:
    """Once something else takes the link, all ranks measure again, at the same round."""
    if r.node_count == 1:
        return
    stream = r.stream(SPECS, AutoPolicy(window=2, overhead=1.0, drift=2.0), scope="slowing down")
    before, grads, anew = r.prober.profile, gradients(), []
    r.prober._ended -= 3600.0  # so that it may measure again, whatever it took
    ballast = np.zeros(4_000_000, np.float32)
    while len(anew) < 100 and not (anew and anew[-1]):
        other = r.allreduce_async(ballast, "ballast", out=ballast) if len(anew) > 8 else None
        step(stream, grads)
        if other is not None:
            other.wait(timeout=60)
        anew.append(r.prober.profile is not before)
    assert equal(anew) and anew[-1]
    stream.close()


@check
def joining(r: Reducer) -> None:
    """While a rank has joined nobody probes; afterwards all go on with the same table."""
    stream = r.stream(SPECS, AutoPolicy(window=1, overhead=1.0, drift=1.05), scope="joining")
    profile, grads = r.prober.profile, gradients()
    for _ in range(6 if comm.rank else 1):
        step(stream, grads)
    if comm.rank:
        assert not r.prober.again() and r.prober.profile is profile
    r.join(60)
    assert equal(r.prober.profile) and equal(stream.codecs())
    assert r.node_count == 1 or (r.prober.again() and r.prober.profile is not profile)
    assert close_to_mean(step(stream, grads), grads)
    stream.close()


def disagreeing(own: object, theirs: object, *words: str) -> None:
    with raises(MismatchError, *words), Reducer(comm, name="disagreeing") as r:
        stream = r.stream(SPECS, own if comm.rank else theirs, scope="s")
        step(stream, gradients())
    print("REFUSED", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["allow"]:
        disagreeing(
            AutoPolicy(allow="none,fp16"), AutoPolicy(allow="none,int8"), "sent allow=['none', 'fp16']"
        )
    elif sys.argv[1:] == ["codec"]:
        disagreeing(AutoPolicy(), "log4", "sent codec auto, allow=None", "expected codec log4")
    else:
        with Reducer(comm) as reducer:
            run(comm.rank, comm.Barrier, sys.argv[1:], reducer)
