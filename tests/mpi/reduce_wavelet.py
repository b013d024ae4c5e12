"""wavelet in streams: two parts, votes, deadlines, residuals. One OK line a check.

With GRADFLOW_DEVICE=emulated the gradients lie on the emulated device.
"""

from __future__ import annotations

import os
import sys

import emulated_gpu  # noqa: F401
import numpy as np
from stepped_common import check, comm, cosine, digest, mean, same_everywhere, traffic

from hvd_gradflow.codec import get
from hvd_gradflow.reduce import Reducer, TensorSpec

wavelet = get("wavelet")
# The first one goes in two parts; the others share a bucket.
SHAPES = {"big": (300, 301), "conv": (48, 16, 3, 3), "odd": (1237,), "flat": (2048,)}


def specs(shapes=SHAPES):
    return [TensorSpec(n, s, "float32", "conv" if len(s) == 4 else "dense") for n, s in shapes.items()]


def gradients(number: int, shapes=SHAPES, smooth: bool = True) -> list[dict[str, np.ndarray]]:
    """Of all ranks: neighbours alike where they are smooth, white noise where not."""
    everyone = []
    for rank in range(comm.size):
        rng, made = np.random.default_rng([number, rank]), {}
        for name, shape in shapes.items():
            x = rng.standard_normal(int(np.prod(shape)))
            made[name] = (np.convolve(x, np.ones(16) / 4, "same") if smooth else x).astype(np.float32)
        everyone.append(made)
    return everyone


def largest(differences) -> float:
    """Largest magnitude; NaN if one is."""
    return float(np.max([np.abs(d).max() for d in differences]))


def opened(r: Reducer, given, codec, **options):
    return r.stream(given, codec, place=r.place_of(np.zeros(1)), **options)


def step(stream, everyone) -> dict[str, np.ndarray]:
    # On a device results take the place of gradients, which are looked at again.
    handles = {n: stream.submit(n, g.copy()) for n, g in everyone[comm.rank].items()}
    return {n: h.wait(60).ravel() for n, h in handles.items()}


def added_up(stream, rounds, get_gradients) -> tuple[bool, dict]:
    """Whether the results of some rounds and what is owed in the end are what went in; the last results."""
    total = {n: 0.0 for n in SHAPES}
    for k in rounds:
        everyone = get_gradients(k)
        got = step(stream, everyone)
        expected = mean(everyone)
        for n in SHAPES:
            total[n] = total[n] + np.float64(got[n]) - expected[n]
    owed = stream.residual_state()
    return largest(total[n] + owed[n].ravel() for n in SHAPES) < 1e-3, got


def values(r: Reducer) -> None:
    for options in ({"filter": "haar"}, {"filter": "db4", "levels": 2}, {"filter": "sym4", "axes": "matrix"}):
        codec = wavelet(where="always", similarity=0.99, **options)
        stream = opened(r, specs(), codec, scope=f"values {options}")
        for k in range(8):
            everyone = gradients(k)
            got = step(stream, everyone)
        expected = mean(everyone)
        found = {n: cosine(got[n], expected[n]) for n in SHAPES}
        check(f"values {options}", min(found.values()) > 0.95 and same_everywhere(got), found)
        whole, got = added_up(stream, range(3), gradients)  # residuals are in gradient units, then not, ...
        owed = {n: v.copy() for n, v in stream.residual_state().items()}
        stream.load_residual_state(owed)
        again = stream.residual_state()
        good = all(np.abs(again[n] - owed[n]).max() < 1e-5 for n in SHAPES)
        check(f"residuals are kept {options}", good and same_everywhere(got))
        stream.close()
    stream = opened(r, specs(), wavelet(where="always", step=1.0), scope="nothing is lost")
    whole, got = added_up(stream, range(6), gradients)
    check("nothing is lost", whole and same_everywhere(got))
    stream.close()
    lossy = wavelet(where="always", step=1.0, error_feedback=False)
    stream = opened(r, specs(), lossy, scope="no feedback")
    got = step(stream, gradients(0))
    check("without feedback", not stream.residual_state() and same_everywhere(got))
    stream.close()


def votes(r: Reducer) -> None:
    """What is smooth is transformed, noise is not, all ranks agree, and it takes fewer bytes."""
    for control in ({"similarity": 0.985}, {"target_ratio": 20}):
        wire = {}
        for name, codec in (("wavelet", wavelet(**control)), ("deadzone", get("deadzone", **control))):
            stream = opened(r, specs(), codec, scope=f"votes {name} {control}")
            for k in range(14):
                everyone = gradients(k)
                for made in everyone:
                    made["flat"] = gradients(k, {"flat": (2048,)}, smooth=False)[0]["flat"] * (comm.rank == 0)
                if k == 8:
                    before = traffic(r)
                got = step(stream, everyone)
            wire[name] = int((traffic(r) - before)[0])
            if name == "wavelet":
                decided = stream._bands.transformed()
                same = len(set(comm.allgather(str(decided)))) == 1
                good = decided["big"] and decided["conv"] and decided["odd"] and not decided["flat"]
                check(f"votes {control}", good and same and same_everywhere(got), decided)
            stream.close()
        fewer = wire["wavelet"] < 0.9 * wire["deadzone"] or "target_ratio" in control
        check(f"fewer bytes where it is voted for {control}", fewer, wire)
    stream = opened(r, specs(), wavelet(step=1.0), scope="votes back and forth")
    frozen = 0.0
    for smooth, rounds in ((True, range(4)), (False, range(4, 18))):  # votes follow rounds 1, 4 and 16
        for k in rounds:
            step(stream, gradients(k, smooth=smooth))
        owed = {n: v.copy() for n, v in stream.residual_state().items()}
        for k in range(3):
            got = step(stream, gradients(100 + k, smooth=smooth))
        later = stream.residual_state()
        # What was held by another rank, or for other elements, leaves like the rest.
        same = [np.mean((owed[n] == later[n]) & (owed[n] != 0)) for n in SHAPES]
        frozen = max(frozen, *map(float, same))
        on = stream._bands.transformed()["big"]
        check(f"votes back and forth {smooth}", on == smooth and same_everywhere(got), on)
    check("nothing that is owed stays for ever", frozen < 0.02, frozen)
    stream.close()


def nonfinite(r: Reducer) -> None:
    for codec in (wavelet(where="always", step=1.0), get("int8")):
        nonfinite_with(r, codec)


def nonfinite_with(r: Reducer, codec) -> None:
    stream = opened(r, specs(), codec, scope=f"not finite {codec.name}")
    total, sent = {n: 0.0 for n in SHAPES}, {n: 0.0 for n in SHAPES}
    for k in range(5):
        everyone = gradients(k)
        if k == 2:
            for n in SHAPES:
                everyone[comm.size - 1][n][-1] = np.nan if n == "odd" else np.inf
        got = step(stream, everyone)
        if k == 2:
            seen = all(not np.isfinite(got[n]).all() for n in SHAPES)
            check(f"what is not finite is seen {codec.name}", seen and len(set(comm.allgather(seen))) == 1)
            continue
        for n in SHAPES:
            total[n], sent[n] = total[n] + np.float64(got[n]), sent[n] + mean(everyone)[n]
    owed = stream.residual_state()
    worst = largest(total[n] + owed[n].ravel() - sent[n] for n in SHAPES)
    check(f"and leaves nothing behind {codec.name}", worst < 1e-3 and same_everywhere(got), worst)
    huge = {n: np.full(int(np.prod(shape)), 3.3e38, np.float32) for n, shape in SHAPES.items()}
    got = step(stream, [huge] * comm.size)
    bad = {n: np.flatnonzero(~np.isfinite(got[n]))[:8] for n in SHAPES if not np.isfinite(got[n]).all()}
    check(f"the largest floats stay finite {codec.name}", not bad, bad)
    stream.close()


def deadline(r: Reducer) -> None:
    """With no time at all the details of what is large wait for another step, and come."""
    count, rows = (2, 256) if r.config.device == "emulated" else (6, 512)  # which is slow
    shapes = {f"w{i}": (rows, 300) for i in range(count)}
    names = list(shapes)
    codec = wavelet(where="always", step=0.5, details_deadline_ms=0.001)
    stream = opened(r, specs(shapes), codec, scope="deadline")
    before = r.counters()["late"]
    total = {n: 0.0 for n in names}
    for k in range(4):
        everyone = gradients(k % 2, shapes)
        got = step(stream, everyone)
        expected = mean(everyone)
        for n in names:
            total[n] = total[n] + np.float64(got[n]) - expected[n]
        found = min(cosine(got[n], expected[n]) for n in names)
        check(f"the lowest band is there {k}", found > 0.5 and same_everywhere(got), found)
    late = r.counters()["late"] - before
    # Where everything fits into the window nothing need wait.
    small = os.environ.get("GRADFLOW_WINDOW") == "1"
    check("details came late", (late > 0 or not small) and len(set(comm.allgather(late))) == 1, late)
    owed = stream.residual_state()
    worst = largest(total[n] + owed[n].ravel() for n in names)
    check("late, not lost", worst < 1e-3, worst)
    stream.close()


def staleness(r: Reducer) -> None:
    stream = opened(r, specs(), wavelet(where="always", step=0.7), scope="stale", max_staleness=1)
    handles, results, sent = [], [], []
    for k in range(6):
        everyone = gradients(k)
        sent.append(mean(everyone))
        handles.append({n: stream.submit(n, everyone[comm.rank][n].copy()) for n in SHAPES})
        stream.advance()
        if k:
            results.append({n: h.wait(60).ravel() for n, h in handles.pop(0).items()})
    results.append({n: h.wait(60).ravel() for n, h in handles.pop(0).items()})
    owed = stream.residual_state()
    came = {n: sum(np.float64(a[n]) for a in results) for n in SHAPES}
    worst = largest(came[n] + owed[n].ravel() - sum(s[n] for s in sent) for n in SHAPES)
    check("staleness", worst < 1e-3 and len(set(comm.allgather(digest(results[-1])))) == 1, worst)
    stream.close()


def main() -> None:
    wanted = sys.argv[1:] or ["values", "votes", "nonfinite", "deadline", "staleness"]
    with Reducer(comm) as r:
        for name in wanted:
            globals()[name](r)
    comm.Barrier()


if __name__ == "__main__":
    main()
