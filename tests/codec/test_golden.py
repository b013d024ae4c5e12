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


def payload_of(codec, case, x, residual):
    """The payload that a case describes, perhaps with given steps, perhaps of the sum of two such ones."""
    left = residual.copy() if case["residual"] else None
    if case.get("finite"):
        x = np.where(np.isfinite(x), x, np.float32(0))
    if "ends" not in case:
        return codec.encode(x, residual=left, key=case["key"], first=case["first"])
    ends, steps = case["ends"], case["steps"]
    payload = codec.encode_stepped(x, ends, steps, residual=left)
    if not case["summed"]:
        return payload
    codes = np.zeros_like(x)
    for part in (payload, codec.encode_stepped(residual, ends, steps)):
        codec.add_codes(part, ends, steps, codes)
    return codec.encode_codes(codes, ends, steps)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_golden(case):
    x, residual = inputs()
    codec = codecs.from_config(case["config"])
    payload = payload_of(codec, case, x, residual)
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
            variants.append((base(entropy=True), False))
            variants.append((base(entropy=True, rounding="stochastic", block=64), True))
        if base.for_sums() is not None:
            variants.append((base.for_sums(), False))
        made = [(codec, fed, {}) for codec, fed in variants]
        if base.transforms:  # with what is not finite, nothing is transformed
            forms = ({}, {"filter": "db2"}, {"filter": "db4", "levels": 1}, {"filter": "sym4", "levels": 2})
            made += [(base(where="always", **form), True, {"finite": True}) for form in forms]
        elif base.stepped:
            stepped = {"ends": [192, 384, 416, 707], "steps": [0.05, 1e-40, 2.0**100, 0.75]}
            made += [(base, fed, {**stepped, "summed": False}) for fed in (False, True)]
            made += [(base(step=1.0), False, {}), (base, False, {**stepped, "summed": True})]
            coded, fine = base(entropy=True), {**stepped, "steps": [0.005, 0.005, 2.0**100, 0.005]}
            made += [(coded, fed, {**fine, "summed": False}) for fed in (False, True)]
            made += [
                (coded(step=1.0), False, {}),
                (coded, False, {**fine, "summed": True}),
            ]  # one stays packed
        for codec, fed, more in made:
            block = codec.spec()["block"]
            rounding = "-stochastic" if codec.spec()["rounding"] else ""
            if "finite" in more:
                rounding = f"-{codec.filter}"
            kind = (
                ("-summed" if more["summed"] else "-stepped")
                if "summed" in more
                else "-own" * (codec.stepped and codec != base and not more)
            )
            kind += "-sum" * (codec == base.for_sums())
            kind += "-entropy" * getattr(codec, "entropy", False)
            stem = f"{name}-{block}{rounding}{kind}{'-residual' if fed else ''}"
            if f"{stem}.bin" in known:
                continue
            case = {
                "file": f"{stem}.bin",
                "decoded": f"{stem}.f32",
                "config": codec.get_config(),
                "key": 0x0123456789ABCDEF,
                "first": 2**33 + 4 * block,
                "residual": fed,
                **more,
            }
            payload = payload_of(codec, case, x, residual)
            payload.tofile(GOLDEN / f"{stem}.bin")
            codec.decode(payload).tofile(GOLDEN / f"{stem}.f32")
            CASES.append(case)
    (GOLDEN / "golden.json").write_text(json.dumps(CASES, indent=1) + "\n")


if __name__ == "__main__":
    _write()
