"""Parts of ``reduce_stepped_streams.py``: the normalized domain, and the policy that chooses by itself."""

from __future__ import annotations

import numpy as np
from stepped_common import (
    check,
    comm,
    cosine,
    deadzone,
    gradients,
    mean,
    same_everywhere,
    specs,
    step,
    traffic,
)

from hvd_gradflow.codec import policy
from hvd_gradflow.reduce import Reducer, TensorSpec


def normalized(r: Reducer) -> None:
    """Coordinates of very different sizes; the moments given, or kept here; a checkpoint between the two."""
    size = 8000
    spread = np.exp(np.random.default_rng(3).standard_normal(size) * 1.2).astype(np.float32)
    moments: dict[str, np.ndarray] = {}
    codec = deadzone(similarity=0.9, domain="normalized")
    given = r.stream(specs({"w": size}), codec, scope="given", second_moment=moments.get)
    own = r.stream(specs({"w": size}), codec, scope="own")
    energy = r.stream(specs({"w": size}), codec(domain="energy"), scope="energy")
    streams, total, sent = (given, own, energy), [0.0, 0.0, 0.0], 0.0
    for k in range(12):
        everyone = [{"w": g["w"] * spread} for g in gradients(k, {"w": size}, {"w": 1.0})]
        expected = mean(everyone)["w"]
        sent = sent + expected
        got = [step(s, everyone)["w"] for s in streams]
        total = [t + np.float64(g) for t, g in zip(total, got)]
        if k >= 1:  # it grows, as an optimizer's does at first
            moments["w"] = (spread * (1 + 0.1 * k)) ** 2
    by_coordinate = [cosine(g / spread, expected / spread) for g in got]
    kept = by_coordinate[0] > 0.7 and by_coordinate[1] > 0.55 and by_coordinate[2] < 0.45
    check("normalized keeps small coordinates", kept, by_coordinate)
    check("normalized alike", all(same_everywhere({"w": g}) for g in got))
    states = [s.residual_state() for s in streams]
    for which, t, state in zip(("given", "own", "energy"), total, states):
        gap = np.abs(t + state["w"] - sent) / spread
        check(
            f"residuals in units of the gradient {which}",
            gap.max() < 1e-3 and same_everywhere(state),
            gap.max(),
        )
    everyone = [{"w": g["w"] * spread} for g in gradients(50, {"w": size}, {"w": 1.0})]
    for stream, t, name in zip(streams, total, ("given", "own", "energy")):
        other = r.stream(specs({"w": size}), codec, scope=f"loaded {name}", second_moment=moments.get)
        other.load_residual_state(states[0 if name == "given" else 1 if name == "own" else 2])
        before = other.residual_state()["w"]
        got = step(other, everyone)["w"]
        gap = np.abs(t + got + other.residual_state()["w"] - sent - mean(everyone)["w"]) / spread
        good = np.allclose(before, stream.residual_state()["w"], rtol=1e-5, atol=1e-6) and gap.max() < 2e-3
        check(f"goes on from a checkpoint {name}", good, gap.max())
        other.close()
    for stream in streams:
        stream.close()


def odd_moments(r: Reducer) -> None:
    """Second moments with zeros, infinities and NaN; gradients far beyond them."""
    size = 3000
    moment = np.full(size, 1e-20, np.float32)
    moment[:100], moment[100:200], moment[200], moment[201] = 0, 1.0, np.inf, np.nan
    stream = r.stream(
        specs({"w": size}), deadzone(step=0.1, domain="normalized"), second_moment=lambda n: moment
    )
    good = True
    for factor in (1e-10, 1e30, 3e38, 1e-10):
        everyone = [
            {"w": np.clip(g["w"], -1, 1) * np.float32(factor)} for g in gradients(0, {"w": size}, {"w": 1.0})
        ]
        got = step(stream, everyone)["w"]
        good &= bool(np.isfinite(got).all()) and same_everywhere({"w": got})
    check("odd moments", good and np.isfinite(stream.residual_state()["w"]).all())
    stream.close()


def adaptive(r: Reducer) -> None:
    sizes = {"conv": 60000, "dense": 200000, "head": 80000, "bias": 64}
    scales = {"conv": 1.0, "dense": 0.1, "head": 1e-3, "bias": 1.0}
    kinds = {"conv": "conv", "bias": "vector"}
    known = [TensorSpec(n, (size,), "float32", kinds.get(n, "dense")) for n, size in sizes.items()]
    for importance in ("energy", "coordinate"):
        for options in ({"target_ratio": 20.0}, {"similarity": 0.97}):
            what = f"adaptive {next(iter(options))} {importance}"
            chosen = policy.as_policy("adaptive", warmup=3, window=21, **options)
            stream, plans = r.stream(known, chosen, scope=what, importance=importance), []
            for k in range(24):
                if k == 14:
                    before = traffic(r)
                everyone = gradients(k, sizes, scales)
                got = step(stream, everyone)
                plans.append(repr(stream.codecs()))
            wire, plain = np.subtract(traffic(r), before)
            good = same_everywhere(got) and len(set(comm.allgather(repr(plans)))) == 1
            good &= "target_ratio" not in options or plain / wire > 0.9 * options["target_ratio"]
            good &= "similarity" not in options or cosine(got["dense"], mean(everyone)["dense"]) > 0.9
            check(what, good, plain / wire)
            if comm.rank != comm.size - 1:  # decides nothing while some have joined
                for k in range(7):
                    step(stream, gradients(k, sizes, scales, seed=k))
            r.join(30)
            check(f"{what} after a join", same_everywhere(step(stream, everyone)))
            stream.close()
