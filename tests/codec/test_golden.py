"""Payloads that earlier releases made: they must still be made, and read, exactly so.

A change that makes this fail changes the wire format: it needs a new version in the header. Files for a new
codec: ``python tests/codec/test_golden.py``, which never overwrites one.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from hvd_gradflow import codec as codecs

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden"
CASES = json.loads((GOLDEN / "golden.json").read_text()) if (GOLDEN / "golden.json").exists() else []


def load(name):
    return np.fromfile(GOLDEN / name, np.uint8)


def inputs():
    return load("input.f32").view(np.float32), load("residual.f32").view(np.float32)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_golden(case):
    x, residual = inputs()
    codec = codecs.from_config(case["config"])
    left = residual.copy() if case["residual"] else None
    payload = codec.encode(x, residual=left, key=case["key"], first=case["first"])
    assert payload.tobytes() == load(case["file"]).tobytes()
    assert codec.decode(load(case["file"])).tobytes() == load(case["decoded"]).tobytes()


def test_every_codec_has_golden_files():
    assert {case["config"]["name"] for case in CASES} == set(codecs.names())


def _write():
    """Make files for what has none yet."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    if not (GOLDEN / "input.f32").exists():
        rng = np.random.default_rng(2024)
        x = (rng.laplace(size=707) * 10.0 ** rng.uniform(-6, 2, 707)).astype(np.float32)
        x[100:164] = 0
        x[200], x[300:364] = np.float32(np.inf), x[300:364] * np.float32(1e-38)
        x[400] = np.finfo(np.float32).max
        x.tofile(GOLDEN / "input.f32")
        rng.normal(size=707).astype(np.float32).tofile(GOLDEN / "residual.f32")
    x, residual = inputs()
    known = {case["file"] for case in CASES}
    for name in codecs.names():
        base = codecs.get(name)
        variants = [(base, False), (base, True)]
        if "block" in base.options():
            variants.append((base(block=32), False))
        if "rounding" in base.options():
            variants.append((base(rounding="stochastic", block=64), True))
        for codec, fed in variants:
            block = codec.spec()["block"]
            rounding = "-stochastic" if codec.spec()["rounding"] else ""
            stem = f"{name}-{block}{rounding}{'-residual' if fed else ''}"
            if f"{stem}.bin" in known:
                continue
            key, first = 0x0123456789ABCDEF, 2**33 + 4 * block
            payload = codec.encode(x, residual=residual.copy() if fed else None, key=key, first=first)
            payload.tofile(GOLDEN / f"{stem}.bin")
            codec.decode(payload).tofile(GOLDEN / f"{stem}.f32")
            CASES.append(
                {
                    "file": f"{stem}.bin",
                    "decoded": f"{stem}.f32",
                    "config": codec.get_config(),
                    "key": key,
                    "first": first,
                    "residual": fed,
                }
            )
    (GOLDEN / "golden.json").write_text(json.dumps(CASES, indent=1) + "\n")


if __name__ == "__main__":
    _write()
