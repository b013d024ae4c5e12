"""The expected errors and sizes against what the codecs do."""

import numpy as np
import pytest

from hvd_gradflow import codec
from hvd_gradflow.codec.policy_candidates import FIXED as CANDIDATES
from hvd_gradflow.codec.policy_model import encoded_bytes, expected_error, plain_bytes, rounding_error

N = 1 << 16
SAMPLES = {
    "gauss": lambda rng: rng.standard_normal(N),
    "laplace": lambda rng: rng.laplace(size=N),
    "student": lambda rng: rng.standard_t(3, size=N),
}


def measured(chosen, x):
    decoded = chosen.decode(chosen.encode(x))
    return float(np.sum((decoded - x) ** 2) / np.sum(x**2))


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("name", [*CANDIDATES, "sign1"])
def test_the_model_of_one_encoding(name, sample):
    x = SAMPLES[sample](np.random.default_rng(0)).astype(np.float32)
    chosen = codec.get(name)
    # Uniform steps depend on the tails; Laplace is the model, Gauss and heavy tails lie beside it.
    factor = {"log4": 1.15, "bf16": 1.2, "sign1": 1.4}.get(
        name, {"gauss": 3.0, "laplace": 1.3, "student": 10.0}[sample]
    )
    error = measured(chosen, x)
    assert rounding_error(chosen) / factor <= error <= rounding_error(chosen) * factor


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 1.0])
def test_the_model_of_topk(ratio):
    x = SAMPLES["laplace"](np.random.default_rng(0)).astype(np.float32)
    chosen = codec.get("topk", ratio=ratio)
    assert measured(chosen, x) == pytest.approx(rounding_error(chosen), rel=0.05)


def test_the_model_of_stochastic_rounding():
    x = SAMPLES["laplace"](np.random.default_rng(0)).astype(np.float32)
    chosen = codec.get("int8", rounding="stochastic")
    assert measured(chosen, x) == pytest.approx(rounding_error(chosen), rel=0.3)


def test_error_feedback_settles_at_the_expected_residual():
    rng = np.random.default_rng(0)
    chosen, residual, ratios = codec.get("int4"), np.zeros(N, np.float32), []
    for _ in range(30):
        x = rng.laplace(size=N).astype(np.float32)
        chosen.encode(x, residual=residual)
        ratios.append(float(np.sum(residual**2) / np.sum(x**2)))
    assert np.mean(ratios[10:]) == pytest.approx(expected_error(chosen), rel=0.3)


def test_without_error_feedback_the_residual_is_the_error_of_one_encoding():
    chosen = codec.get("int2", error_feedback=False)
    assert expected_error(chosen) == rounding_error(chosen) < expected_error(codec.get("int2"))


def test_bits_order_errors():
    errors = [expected_error(codec.get(name)) for name in ("int2", "int4", "int8", "bf16", "none")]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0.0


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("n", [1, 1023, 1024, 1025, 65536, 65537, 200_000])
def test_bytes_are_those_of_the_payloads(name, n):
    chosen = codec.get(name)
    block = chosen.get_config().get("block") or 1
    padded = np.zeros(-(-n // block) * block, np.float32)
    padded[:n] = np.random.default_rng(0).standard_normal(n)
    payloads = [chosen.encode(padded[i : i + 65536]) for i in range(0, len(padded), 65536)]
    assert encoded_bytes(chosen, n) == pytest.approx(sum(p.nbytes for p in payloads), rel=0.01)


def test_plain_bytes():
    assert plain_bytes(10, "float32") == plain_bytes(10, "bfloat16") == 40
    assert plain_bytes(10, "float64") == 80
