"""Low-rank factors: what they span, at every scale, and that their bits do not depend on the machine."""

import hashlib

import numpy as np
import pytest

from hvd_gradflow.codec import low_rank

SCALES = (1e-43, 1e-40, 1e-30, 1.0, 1e30, 3e38)


def of_rank(r, rows, columns, seed=0, scale=1.0):
    """A matrix of this rank whose largest magnitude is `scale`."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, r)) @ rng.standard_normal((r, columns))
    return (matrix / np.abs(matrix).max() * scale).astype(np.float32)


def whole(p, q, exponent=0):
    matrix = np.full((p.shape[1], q.shape[1]), np.nan, np.float32)
    for begin, end, block in low_rank.product(p, q, exponent):
        matrix[begin:end] = block
    return matrix


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), None),
        ((7,), None),
        ((30, 20), (30, 20)),
        ((64, 32, 3, 3), (64, 288)),  # torch: outputs first
        ((3, 3, 32, 64), (288, 64)),  # TensorFlow: outputs last
        ((5, 6, 5), (5, 30)),
        ((0, 4), (0, 4)),
    ],
)
def test_tensors_as_matrices(shape, expected):
    assert low_rank.matrix_shape(shape) == expected


@pytest.mark.parametrize("scale", SCALES)
def test_orthonormal_rows_at_any_scale(scale):
    factor = of_rank(4, 4, 701, scale=scale)
    rows = low_rank.orthonormalized(factor).astype(np.float64)
    gram = rows @ rows.T
    kept = np.diag(gram) > 0.5
    assert np.allclose(gram, np.diag(kept.astype(float)), atol=1e-6)
    assert kept.all()
    # The first of them keeps its direction.
    cosine = factor[0].astype(np.float64) @ rows[0] / np.linalg.norm(factor[0].astype(np.float64))
    assert abs(cosine - 1) < 1e-6


def test_dependent_rows_become_zero_and_near_ones_stay_orthogonal():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 400)).astype(np.float32)
    rows = low_rank.orthonormalized(np.stack([a, 3 * a, np.zeros_like(a), b, a + b]))
    assert [bool(r.any()) for r in rows] == [True, False, False, True, False]
    near = np.stack([a, a + 1e-4 * b, a - 1e-4 * b + 1e-5 * rng.standard_normal(400).astype(np.float32)])
    rows = low_rank.orthonormalized(near).astype(np.float64)
    assert np.allclose(rows @ rows.T, np.eye(3), atol=1e-6)
    assert not low_rank.orthonormalized(np.zeros((2, 5), np.float32)).any()


def test_bits_are_those_of_every_machine():
    """Nothing here may depend on a BLAS, on instruction sets or on a version of NumPy."""
    factor = low_rank.drawn(3, 1001, 7, 2**64 - 1)
    other = low_rank.drawn(3, 77, 8)
    made = low_rank.orthonormalized(factor)
    digest = hashlib.sha256()
    for part in (factor, made, low_rank.renewed(other, 1), whole(made, other), whole(made, other, 127)):
        digest.update(part.tobytes())
    assert digest.hexdigest() == "adf29091e982615d04ddfa86c0ed9dc109d24d3fcbe0f8c63014f7797e3d73ef"


def test_drawn_factors():
    factor = low_rank.drawn(4, 5000, 3)
    assert factor.all() and abs(factor).max() < 1
    assert abs(factor.mean()) < 0.02 and abs(factor.std() - 3**-0.5) < 0.01
    assert not np.array_equal(factor, low_rank.drawn(4, 5000, 4))
    assert np.array_equal(factor, low_rank.drawn(4, 5000, 3))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 1000, 1001])
def test_ordered_sums_are_sums(n):
    values = np.arange(3.0 * n).reshape(3, n)
    assert np.array_equal(low_rank.ordered_sum(values), values.sum(axis=1))
    assert not low_rank.ordered_sum(np.zeros((3, 0))).any()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 70_000), (5000, 40), (0, 4), (4, 0)])
def test_products(rows, columns):
    p, q = low_rank.drawn(3, rows, 1), low_rank.drawn(3, columns, 2)
    exact = p.T.astype(np.float64) @ q.astype(np.float64)
    assert np.abs(whole(p, q) - exact).max(initial=0) < 1e-6
    assert np.array_equal(whole(p, q, -3), whole(p, q) / 8)


def test_products_beyond_float32_are_its_largest():
    p = np.array([[1, -1, 0.5]], np.float32)
    q = np.array([[3e38, -1e-45]], np.float32)
    got = whole(np.repeat(p, 2, axis=0), np.repeat(q, 2, axis=0))
    assert np.array_equal(got[:, 0], np.array([low_rank.FLOAT_MAX, -low_rank.FLOAT_MAX, 3e38], np.float32))
    assert np.array_equal(got[:2, 1], 2 * np.array([-1e-45, 1e-45], np.float32))


@pytest.mark.parametrize("scale", SCALES)
def test_renewed_factors_cannot_overflow_and_do_not_die(scale):
    q = of_rank(3, 3, 999, scale=scale)
    q[1] = 0
    new = low_rank.renewed(q, 5)
    total = np.abs(new.astype(np.float64)).sum(axis=1)
    assert (total < 1).all() and (total > 1e-3).all()
    assert np.array_equal(new, low_rank.renewed(q, 5))
    assert not np.array_equal(new[1], low_rank.renewed(q, 6)[1])
    a, b = q[0].astype(np.float64), new[0].astype(np.float64)
    assert abs(a @ b / np.linalg.norm(a) / np.linalg.norm(b) - 1) < 1e-6
    gram = new.astype(np.float64) @ new.T.astype(np.float64)
    assert np.allclose(gram / gram[0, 0], np.eye(3), atol=1e-6)
    huge = np.full((999, 40), low_rank.FLOAT_MAX, np.float32)
    assert np.isfinite(low_rank.project(new, huge)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 17, 1000, 4096, 4097])
def test_half_exponents(n):
    k = low_rank.half_exponent(n)
    assert 4.0**k >= n > 4.0 ** (k - 1) / 4
    column = np.full((n, 1), low_rank.FLOAT_MAX, np.float32)
    unit = low_rank.orthonormalized(np.ones((1, n), np.float32)) * np.float32(2.0**-k)
    assert np.isfinite(low_rank.project(unit, column)).all()


def test_power_iteration_converges_to_the_best_approximation():
    rng = np.random.default_rng(1)
    matrix = (of_rank(2, 80, 60) * 5 + 0.05 * rng.standard_normal((80, 60))).astype(np.float32)
    q = low_rank.drawn(2, 60, 0)
    errors = []
    for step in range(12):
        p = low_rank.orthonormalized(low_rank.project(low_rank.renewed(q, step), matrix.T))
        q = low_rank.project(p, matrix)
        errors.append(float(np.linalg.norm(matrix - whole(p, q))))
    best = float(np.sqrt((np.linalg.svd(matrix.astype(np.float64))[1][2:] ** 2).sum()))  # Eckart and Young
    assert best * (1 - 1e-6) < errors[-1] < best * (1 + 1e-4)
    assert errors[-1] < errors[0]


def test_clipped_sums():
    values = np.array([3e38, -3e38, 1, np.inf, np.nan] * 20_000, np.float32)
    low_rank.add_clipped(values, 1.0, np.array([2e38, -2e38, 1, 0, 0] * 20_000, np.float32))
    largest = low_rank.FLOAT_MAX
    assert np.array_equal(values[-5:-1], np.array([largest, -largest, 2, largest], np.float32))
