"""The benchmark on recorded gradients: its bound, its rows and the files it reads; never how fast."""

import json
from pathlib import Path

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.bench.gradients import least_bits_per_element, load_gradients, run_gradient_bench
from hvd_gradflow.errors import ConfigError

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "gradients.npz"
KEYS = {
    "codec",
    "encode_target",
    "decode_add_target",
    "device",
    "elements",
    "bits_per_element",
    "bound_bits_per_element",
    "similarity",
    "relative_error",
    "encode_gbps",
    "encode_memcpy_ratio",
    "decode_add_gbps",
    "decode_add_memcpy_ratio",
}


def bound(variances, lengths, lost):
    lengths = np.array(lengths)
    return least_bits_per_element(np.array(variances, float) * lengths, lengths, lost)


def test_one_variance_takes_half_a_bit_for_each_halving_of_the_error():
    assert bound([4.0], [32], 32 * 4.0 / 2**6) == pytest.approx(3.0)
    assert bound([4.0] * 5, [32] * 5, 5 * 32 * 4.0 / 2) == pytest.approx(0.5)


def test_blocks_below_the_level_take_no_bits():
    # The level is 1: the first block keeps its energy, the second takes log2(16) / 2 = 2 bits.
    assert bound([0.5, 16.0], [32, 32], 32 * (0.5 + 1.0)) == pytest.approx(1.0)
    assert bound([0.0, 16.0], [96, 32], 32 * 1.0) == pytest.approx(0.5)
    # Just at the border, from both sides.
    assert bound([1.0, 16.0], [32, 32], 32 * 2.0) == pytest.approx(1.0)


def test_nothing_to_send_where_all_may_be_lost():
    assert bound([1.0, 2.0], [32, 16], 64.0) == pytest.approx(0.0)
    assert bound([1.0, 2.0], [32, 16], 65.0) == 0.0


def test_no_error_would_take_infinitely_many_bits():
    with pytest.raises(ValueError, match="squared error 0: expected more than zero"):
        bound([1.0], [32], 0)


def test_the_level_is_the_one_that_bisection_finds():
    rng = np.random.default_rng(3)
    variances, lengths = 10.0 ** rng.uniform(-12, 0, 400), rng.integers(1, 33, 400)
    for part in (0.5, 1e-2, 1e-6, 1e-12):
        lost = part * (variances * lengths).sum()
        low, high = 0.0, variances.max()
        for _ in range(200):
            level = (low + high) / 2
            if (lengths * np.minimum(variances, level)).sum() < lost:
                low = level
            else:
                high = level
        bits = (lengths * np.maximum(0, np.log2(variances / level) / 2)).sum() / lengths.sum()
        assert bound(variances, lengths, lost) == pytest.approx(bits, rel=1e-6)


def test_the_sample_is_what_a_network_gave():
    sample = load_gradients(str(SAMPLE))
    assert SAMPLE.stat().st_size <= 400_000
    assert {key.split("/")[0] for key in sample} == {"cnn", "text"}
    for key, first in sample.items():
        assert first.size >= 1024 and first.size % 32 == 0
        second = sample[key.replace("worker0", "worker1")]
        assert second.size == first.size
        if "worker0" in key:
            assert not np.array_equal(first, second)
    everything = np.concatenate(list(sample.values()))
    assert everything.size >= 32_768
    assert (everything != everything.astype(np.float16)).mean() > 0.9


def test_rows_table_and_file(tmp_path, capsys):
    file = tmp_path / "rows.json"
    rows = run_gradient_bench(str(SAMPLE), str(file), megabytes=0.05, repeats=1)
    assert json.loads(file.read_text()) == rows
    assert [row["codec"] for row in rows] == codecs.names()
    assert all(set(row) == KEYS for row in rows)
    by_name = {row["codec"]: row for row in rows}
    exact = by_name["none"]
    assert (exact["relative_error"], exact["bound_bits_per_element"]) == (0, None)
    assert exact["similarity"] == pytest.approx(1.0)
    for row in rows:
        assert row["encode_gbps"] > 0 and row["decode_add_memcpy_ratio"] > 0
        # A hundredth of the values holds less than half of the energy, and topk sends nothing else at first.
        assert (0.3 if row["codec"] == "topk" else 0.5) < row["similarity"] <= 1 + 1e-12
    plain = [by_name[name] for name in ("fp16", "bf16", "int8", "int4", "int2")]
    errors, bounds = ([row[key] for row in plain] for key in ("relative_error", "bound_bits_per_element"))
    assert errors == sorted(errors)
    assert bounds == sorted(bounds, reverse=True)
    # Codes of one width for all values are far from the bound; an entropy coder might even pass it.
    assert all(0 < row["bound_bits_per_element"] < row["bits_per_element"] for row in plain)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 2
    assert lines[1].split()[:5] == ["codec", "bits", "bound", "similarity", "error"]


@pytest.fixture
def gradients(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return str(tmp_path / "x.npz")

    return write


def test_payloads_are_as_long_as_on_the_wire(gradients, capsys):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((100, 700)).astype(np.float32)
    small = np.full(1023, 1e6, np.float32)
    (row,) = run_gradient_bench(
        gradients(x=x, small=small, meta="{}"), codecs=["int4"], megabytes=0.01, repeats=1
    )
    int4 = codecs.get("int4")
    assert row["elements"] == x.size
    assert row["bits_per_element"] * x.size / 8 == sum(map(int4.max_encoded_size, (65536, x.size - 65536)))
    flat = x.reshape(-1)
    decoded = np.concatenate([int4.decode(int4.encode(part)) for part in (flat[:65536], flat[65536:])])
    lost = np.linalg.norm(flat - decoded)
    assert row["relative_error"] == pytest.approx(lost / np.linalg.norm(flat), rel=1e-5)
    cosine = flat @ decoded / (np.linalg.norm(flat) * np.linalg.norm(decoded))
    assert row["similarity"] == pytest.approx(cosine, rel=1e-5)
    assert "70000 elements in 1 tensors; 1 are below 1024 elements and left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"meta": "{}"}, "holds no array"),
        ({"x": np.ones(2000)}, "x is of type float64, expected float32"),
        ({"x": np.full(2000, np.nan, np.float32)}, "x holds NaN or infinity"),
        ({"x": np.ones(9, np.float32)}, "none of its 1 gradients has GRADFLOW_MIN_ELEMENTS=1024"),
        ({"x": np.zeros(2000, np.float32)}, "all its gradients are zero"),
        ({"x": np.array([{}])}, "expected an .npz file of float32 arrays: Object arrays cannot be loaded"),
    ],
)
def test_a_file_without_gradients_is_refused(gradients, arrays, words):
    with pytest.raises(ConfigError, match=words):
        run_gradient_bench(gradients(**arrays), megabytes=0.01)


@pytest.mark.parametrize("content", [b"", b"no such thing", b"PK\x03\x04 cut off"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    file = tmp_path / "x.npz"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="expected an \\.npz file"):
        load_gradients(str(file))


def test_one_array_is_no_recording(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(2000, np.float32))
    with pytest.raises(ConfigError, match="expected an \\.npz file"):
        load_gradients(str(tmp_path / "x.npy"))


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        load_gradients(str(tmp_path / "x.npz"))
    with pytest.raises(ConfigError, match="unknown codec 'int9'"):
        run_gradient_bench(str(SAMPLE), codecs=["int9"])
