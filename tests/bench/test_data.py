"""What is exchanged: sizes, who has what, and the exact average."""

from pathlib import Path

import numpy as np
import pytest

from hvd_gradflow.bench.data import relative_error, slices, source
from hvd_gradflow.bench.ddp_hooks import powersgd_bytes, shape_of
from hvd_gradflow.errors import ConfigError

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "gradients.npz"


def test_normal_values_differ_by_rank_and_every_rank_knows_them():
    first, second = (source("normal")(4000, rank, 2) for rank in range(2))
    assert first.layout == {"tensor": 1000} and first.nbytes == 4000
    assert first.of(1).tobytes() == second.values.tobytes() != first.values.tobytes()
    exact = (first.values.astype(np.float64) + second.values) / 2
    np.testing.assert_allclose(first.exact, exact)
    assert first.relative_error(exact.astype(np.float32)) < 1e-7
    assert first.relative_error(np.zeros(1000, np.float32)) == pytest.approx(1)
    assert first.relative_error((1.25 * exact).astype(np.float32)) == pytest.approx(0.25, rel=1e-5)


def test_the_error_of_long_arrays_is_that_of_all_pieces():
    exact = np.ones(2_500_000)
    result = exact.astype(np.float32)
    result[-1] = 1001
    assert relative_error(result, exact) == pytest.approx((1e6 / 2.5e6) ** 0.5)
    assert np.isnan(relative_error(result, np.zeros(exact.size)))


@pytest.mark.parametrize("nbytes", [4000, 1_000_000])
def test_recorded_tensors_keep_their_share_and_distribution(nbytes):
    make = source(str(SAMPLE), "cnn")
    mine, other = make(nbytes, 0, 3), make(nbytes, 1, 3)
    assert mine.nbytes == mine.values.nbytes == nbytes
    assert not np.array_equal(mine.values, other.values)
    assert np.array_equal(mine.of(2), mine.values)  # two workers, three ranks
    with np.load(SAMPLE) as file:
        keys = [key for key in file.files if key.startswith("cnn/") and "/worker0/" in key]
        recorded = {key.split("/worker0/")[1]: file[key] for key in keys}
    total = sum(a.size for a in recorded.values())
    for name, place in slices(mine.layout):
        part = mine.values[place]
        assert abs(part.size - nbytes // 4 * recorded[name].size / total) <= 1
        assert np.array_equal(part, np.resize(recorded[name], part.size))


@pytest.mark.parametrize(
    ("model", "words"),
    [(None, "holds gradients of cnn, text: choose one"), ("cnm", "unknown model 'cnm'; known: cnn, text")],
)
def test_a_model_must_be_chosen(model, words):
    with pytest.raises(ConfigError, match=words):
        source(str(SAMPLE), model)


def test_other_files_are_the_same_for_all_ranks(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, a=np.arange(6, dtype=np.float32).reshape(2, 3))
    assert source(path)(32, 1, 2).values.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    with pytest.raises(ConfigError, match="its keys name no models"):
        source(path, "cnn")


def test_powersgd_sends_two_factors_where_that_is_half_as_much():
    assert shape_of(16_000_000) == (4000, 4000)
    assert shape_of(13) == (1, 13)
    assert powersgd_bytes((4000, 4000), "powersgd1") == 32_000
    assert powersgd_bytes((64, 3, 5, 5), "powersgd4") == 4 * 4 * (64 + 75)
    assert powersgd_bytes((2048,), "powersgd1") == 4 * 2048
    assert powersgd_bytes((4, 4), "powersgd4") == 64


def test_one_tensor_is_all_of_them_end_to_end():
    several, one = (source(str(SAMPLE), "cnn", one_tensor=flat)(4000, 1, 2) for flat in (False, True))
    assert list(one.layout) == ["tensor"] and one.nbytes == 4000
    first = next(iter(several.layout.values()))
    assert np.array_equal(one.values[:first], several.values[:first])
