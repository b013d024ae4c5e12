"""The reference and every instruction level give the same bytes, for any bits at all."""

import numpy as np
from codec.conformance import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import _kernels, backend, wire

KINDS = ("any bits", "finite bits", "laplace", "powers of two", "tiny", "huge", "sparse")


def make(kind, n, rng):
    if kind in ("any bits", "finite bits"):
        x = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
        return x if kind == "any bits" else np.where(np.isfinite(x), x, np.float32(0))
    x = rng.laplace(size=n)
    if kind == "powers of two":
        x = np.ldexp(rng.choice([1.0, -1.0, 1.5, -1.5, 0.75], n), rng.integers(-12, 3, n))
    elif kind == "tiny":
        x = x * 10.0 ** rng.uniform(-45, -36)
    elif kind == "huge":
        x = np.clip(x / 8, -1, 1) * 3.4028234e38
    elif kind == "sparse":
        x = x * (rng.random(n) < 0.01)
    return x.astype(np.float32)


def run(spec, kernels, x, residual, acc, key, first):
    """All outputs of one backend, as bytes."""
    out = np.zeros(kernels.max_encoded_size(spec, x.size), np.uint8)
    fed = np.zeros_like(out)
    left = residual.copy()
    payload = out[: kernels.encode(spec, x, None, key, first, 1, out)]
    again = fed[: kernels.encode(spec, x, left, key, first, 1, fed)]
    y, total = np.empty_like(x), acc.copy()
    kernels.decode(spec, payload, y)
    kernels.decode_add(spec, again, total)
    return {"payload": payload, "with residual": again, "residual": left, "decoded": y, "added": total}


def run_stepped(spec, kernels, ends, steps, x, residual, acc):
    """All outputs of the kernels that are given steps."""
    out = np.zeros(kernels.max_encoded_size(spec, x.size), np.uint8)
    fed, summed = np.zeros_like(out), np.zeros_like(out)
    left, total, codes, y = residual.copy(), acc.copy(), np.zeros_like(x), np.zeros_like(x)
    payload = out[: kernels.encode_stepped(spec, ends, steps, x, None, 1, out)]
    again = fed[: kernels.encode_stepped(spec, ends, steps, x, left, 2, fed)]
    kernels.decode_add(spec, payload, total)
    for p in (payload, again):
        kernels.add_codes(spec, ends, steps, p, codes)
    size = kernels.encode_codes(spec, ends, steps, codes, 1, summed)
    kernels.decode(spec, summed[:size], y)
    return {
        "payload": payload,
        "with residual": again,
        "residual": left,
        "added": total,
        "codes": codes,
        "encoded codes": summed[:size],
        "decoded codes": y,
    }


def on_every_level(work, expected):
    """Compare what `work(backend)` gives on each instruction level."""
    before = _kernels.simd_level()
    try:
        for level in _kernels.simd_levels():
            _kernels.set_simd_level(level)
            found = work(backend("cpu"))
            for what in expected:
                assert same_bits(found[what], expected[what]), f"{what} differs on {level}"
    finally:
        _kernels.set_simd_level(before)


@settings(max_examples=250, deadline=None)
@given(
    name=st.sampled_from([n for n in codecs.names() if codecs.get(n).wire_id in wire.CODECS]),
    kind=st.sampled_from(KINDS),
    n=st.one_of(st.integers(0, 70), st.integers(71, 3000), st.sampled_from([1024, 8192, 8193, 20000])),
    block_log2=st.integers(5, 12),
    stochastic=st.booleans(),
    entropy=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    key=st.integers(0, 2**64 - 1),
    block_index=st.integers(0, 2**40),
)
def test_same_bytes(name, kind, n, block_log2, stochastic, entropy, seed, key, block_index):
    codec = codecs.get(name)
    if "block" in codec.options():
        codec = codec(block=2**block_log2)
    if "rounding" in codec.options():
        codec = codec(rounding="stochastic" if stochastic else "nearest", entropy=entropy)
    rng = np.random.default_rng(seed)
    x, acc = make(kind, n, rng), make("laplace", n, rng)
    residual = make("finite bits" if kind == "any bits" else kind, n, rng)
    spec = codec.spec()
    first = block_index * spec["block"]
    expected = run(spec, backend("numpy"), x, residual, acc, key, first)
    on_every_level(lambda kernels: run(spec, kernels, x, residual, acc, key, first), expected)
    assert np.isfinite(expected["residual"]).all()
    if np.isfinite(x).all():
        assert np.isfinite(expected["decoded"]).all()


STEPS = (0.0, 1e-45, 1.5e-38, 1e-12, 0.01, 0.3, 1.0, 20.0, 1e19, 1e38, 3.4028235e38)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.one_of(st.integers(0, 70), st.integers(71, 3000), st.sampled_from([1024, 2048, 2049, 10000])),
    blocks=st.lists(st.sampled_from([1, 2, 31, 32, 33, 70]), max_size=6),
    steps=st.lists(st.sampled_from(STEPS), min_size=7, max_size=7),
    offset=st.sampled_from([0.0, 0.25, 0.4, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_same_bytes_with_given_steps(kind, n, blocks, steps, offset, seed):
    rng = np.random.default_rng(seed)
    x, acc = make(kind, n, rng), make("laplace", n, rng)
    acc[::3] = -0.0
    residual = make("finite bits" if kind == "any bits" else kind, n, rng)
    x[::5], residual[::5] = -0.0, -0.0
    ends = [end for end in np.cumsum(blocks) * 32 if end < n] + [n] * (n > 0)
    ends, steps = np.array(ends, np.uint64), np.array(steps[: len(ends)], np.float32)
    spec = codecs.get("deadzone", offset=offset).spec()
    with np.errstate(all="ignore"):
        expected = run_stepped(spec, backend("numpy"), ends, steps, x, residual, acc)
    on_every_level(lambda kernels: run_stepped(spec, kernels, ends, steps, x, residual, acc), expected)
    assert np.isfinite(expected["residual"]).all()
    if np.isfinite(x).all():
        assert np.isfinite(expected["codes"]).all()
        assert np.isfinite(expected["decoded codes"]).all()
