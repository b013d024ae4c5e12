"""wavelet: the transform against PyWavelets and between backends, and the codec by itself."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import pywt
from codec.conformance import CodecConformance, same_bits, values

from hvd_gradflow import codec as codecs
from hvd_gradflow import device
from hvd_gradflow.codec.wire import Header
from hvd_gradflow.device import registry
from hvd_gradflow.device.wavelet import FILTERS, extents, lowest
from hvd_gradflow.errors import ConfigError, WireError

# Elements and columns: nothing to transform, tails, borders of the pieces that stay in the cache, matrices.
SIZES = (
    *((n, 0) for n in (0, 1, 7, 8, 16, 31, 1000, 16421)),
    *((64 * 48, 48), (35 * 27, 27), (5 * 3, 3), (9 * 100, 100)),
)


def transformed(x, name, levels, columns, inverse=False, finite=True, backend=None):
    out = np.empty_like(x)
    (backend or device.backend()).wavelet(x, out, name, levels, columns, inverse, finite)
    return out


def by_pywavelets(x, name, levels, columns):
    rows, width = extents(x.size, levels, columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "all coefficients will experience boundary effects"
        if not rows:
            bands = pywt.wavedec(x[:width].astype(float), name, "periodization", level=levels)
            return np.concatenate(bands)
        matrix = x.reshape(-1, columns)[:rows, :width].astype(float)
        first, *details = pywt.wavedec2(matrix, name, "periodization", level=levels)
        return np.concatenate([first.ravel(), *(part.ravel() for level in details for part in level)])


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("name", FILTERS)
class TestTransform:
    def test_coefficients_are_those_of_pywavelets(self, name):
        for n, columns in SIZES:
            for levels in (1, 3):
                x = values(n, seed=n)
                c = transformed(x, name, levels, columns)
                rows, width = extents(n, levels, columns)
                if width:
                    expected = by_pywavelets(x, name, levels, columns)
                    assert np.abs(c[: expected.size] - expected).max() < 1e-5 * max(1, np.abs(x).max())
                assert lowest(n, levels, columns) == (max(rows, 1) * width) >> levels * (2 if rows else 1)
                again = transformed(c, name, levels, columns, inverse=True)
                assert np.abs(again - x).max(initial=0) < 1e-5 * max(1, np.abs(x).max(initial=0))

    def test_bits_are_those_of_the_reference(self, name):
        reference = registry.backend("numpy")
        for n, columns in SIZES:
            for levels in (1, 2, 5):
                for finite in (True, False):
                    x = values(n, seed=n)
                    if n > 10:
                        x[3:8] = (3e38, 3.3e38, -0.0, 1e-44, np.finfo(np.float32).max if finite else np.inf)
                    for inverse in (False, True):
                        found = transformed(x, name, levels, columns, inverse, finite)
                        expected = transformed(x, name, levels, columns, inverse, finite, reference)
                        # Which of two NaN an operation gives is the processor's choice.
                        assert np.array_equal(np.isnan(found), np.isnan(expected))
                        assert same_bits(found[~np.isnan(found)], expected[~np.isnan(found)]), (n, columns)
                        assert np.isfinite(found).all() or not finite

    def test_what_is_constant_is_in_the_lowest_band(self, name):
        c = transformed(np.ones(4096, np.float32), name, 3, 0)
        energy = np.square(c[: lowest(4096, 3, 0)], dtype=np.float64).sum()
        assert abs(energy / 4096 - 1) < 1e-5


def test_impossible_transforms_are_refused():
    x, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    for name, levels, columns, target, word in (
        ("db3", 3, 0, out, "db3"),
        ("haar", 0, 0, out, "0 levels"),
        ("haar", 9, 0, out, "9 levels"),
        ("haar", 1, 3, out, "rows of 3"),
        ("haar", 1, 0, out[:4], "4 elements"),
        ("haar", 1, 0, x, "overlaps"),
    ):
        for backend in registry.names():
            with pytest.raises(ValueError, match=word):
                registry.backend(backend).wavelet(x, target, name, levels, columns, False, True)


def smooth(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.convolve(rng.laplace(size=n), np.ones(16) / 4, "same").astype(np.float32)


def similarity(x, y) -> float:
    return float(
        np.dot(x.astype(float), y) / np.linalg.norm(x.astype(float)) / np.linalg.norm(y.astype(float))
    )


class TestWavelet(CodecConformance):
    """An error is one of the whole tensor here: what the suite says of blocks is said of norms."""

    @pytest.fixture(params=[{"step": 0.25}, {"where": "always", "step": 0.25, "filter": "db4"}], ids=str)
    def codec(self, request):
        return codecs.get("wavelet", **request.param)

    def test_any_length_comes_back_within_the_bound(self, codec):
        for n in (0, 1, 2, 3, 7, 31, 32, 33, 1025, 4099):
            x = values(n, seed=n)
            payload = codec.encode(x)
            y = codec.decode(payload)
            assert payload.size <= codec.max_encoded_size(n)
            assert y.dtype == np.float32
            assert y.shape == (n,)
            assert np.linalg.norm(y - x) <= 0.18 * np.linalg.norm(x)  # sqrt(1 - 0.985^2), and 0.25 / sqrt(12)
            header = Header.unpack(payload)
            assert (header.codec, header.count, header.length) == (codec.wire_id, n, payload.size - 32)

    def test_any_scale_comes_back_finite_and_within_the_bound(self, codec):
        unit = np.clip(values(1500, seed=1) / 4, -1, 1).astype(np.float64)
        for scale in (1e-37, 1e-19, 1e-9, 1e9, 1e19, 1e37):
            x = (unit * scale).astype(np.float32)
            y = codec.decode(codec.encode(x)).astype(np.float64)
            assert np.linalg.norm(y - x) <= 0.18 * np.linalg.norm(x.astype(np.float64)), scale
        for scale in (1e-45, float(np.finfo(np.float32).max)):
            assert np.isfinite(codec.decode(codec.encode((unit * scale).astype(np.float32)))).all()

    @pytest.mark.parametrize("negative", [False, True])
    def test_zeros_stay_exactly_zero(self, codec, negative):
        residual = np.zeros(700, np.float32)
        x = np.full(700, -0.0 if negative else 0.0, np.float32)
        assert not codec.decode(codec.encode(x, residual=residual)).any()
        assert not residual.any()
        x[600] = 4  # what is far from it stays zero, too
        assert not codec.decode(codec.encode(x))[:400].any()

    def test_a_spike_harms_only_its_block(self, codec):
        x = values(4096, seed=2)
        x[5] = 1e4
        y = codec.decode(codec.encode(x))
        assert abs(y[5] - 1e4) < 2e3
        assert np.abs(y[2048:]).max() < 2e3

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite_is_not_hidden_and_stays_in_its_block(self, codec, bad):
        x, residual = values(300, seed=3), values(300, seed=4, scale=0.01)
        x[150] = bad
        kept = residual.copy()
        y = codec.decode(codec.encode(x, residual=residual))
        hurt = np.arange(300) // 32 == 150 // 32
        assert not np.isfinite(y[hurt]).any()
        assert np.isfinite(y[~hurt]).all()
        assert same_bits(residual[hurt], kept[hurt])
        assert np.isfinite(residual).all()

    def test_cut_at_a_block_border_it_gives_the_same(self, codec):
        x = smooth(4096)
        whole = codec.decode(codec.encode(x, first=64))
        parts = [codec.decode(codec.encode(p, first=f)) for p, f in ((x[:1024], 0), (x[1024:], 1024))]
        assert similarity(whole, np.concatenate(parts)) > 0.95


@pytest.mark.usefixtures("platform")
def test_smooth_arrays_take_fewer_bytes_and_noise_no_more():
    deadzone = codecs.get("deadzone", similarity=0.987)
    wavelet = codecs.get("wavelet", similarity=0.987)
    x = smooth(4000)
    assert wavelet.encode(x).size < 0.8 * deadzone.encode(x).size
    assert similarity(x, wavelet.decode(wavelet.encode(x))) > 0.986
    x = values(4000)
    assert wavelet.encode(x).size <= deadzone.encode(x).size + 48


def test_matrices_have_two_dimensions_where_asked_for():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.repeat(rng.laplace(size=(16, 16)), 8, 0), 8, 1).astype(np.float32)
    sizes = [
        codecs.get("wavelet", axes=axes, where="always").encode(rows).size for axes in ("memory", "matrix")
    ]
    assert sizes[1] < 0.6 * sizes[0]
    codec = codecs.get("wavelet", axes="matrix", where="always", similarity=0.99)
    assert similarity(rows.ravel(), codec.decode(codec.encode(rows))) > 0.985


def test_every_damaged_payload_is_refused():
    codec = codecs.get("wavelet", where="always")
    payload = codec.encode(values(500))
    rng = np.random.default_rng(0)
    for _ in range(300):
        bad = payload.copy()
        bad[rng.integers(bad.size)] ^= np.uint8(1 << rng.integers(8))
        with pytest.raises(WireError):
            codec.decode(bad)
    for cut in (0, 10, 31, 32, 36, 40, 60, payload.size - 1):
        with pytest.raises(WireError):
            codec.decode(payload[:cut])
    with pytest.raises(WireError):
        codec.decode(codecs.get("deadzone").encode(values(500)))
    with pytest.raises(WireError):
        codecs.get("deadzone").decode(payload)
    acc = np.ones(499, np.float32)
    for wrong in (lambda: codec.decode_add(payload, acc), lambda: codec.decode(payload, out=acc)):
        with pytest.raises(WireError, match="499"):
            wrong()
    assert (acc == 1).all()


def test_a_forged_front_is_refused():
    codec = codecs.get("wavelet", where="always")
    payload = codec.encode(values(512))

    def forged(at, value):
        bad = payload.copy()
        bad[at] = value
        bad[28:32] = 0
        crc = device.backend().crc32c(bad, 0)
        bad[28:32] = np.frombuffer(np.uint32(crc).tobytes(), np.uint8)
        return bad

    assert codec.decode(forged(33, 0)).size == 512  # not transformed
    for at, value in ((32, 9), (33, 200), (34, 1), (36, 7), (24, 1), (4, 9), (5, 4)):
        with pytest.raises(WireError):
            codec.decode(forged(at, value))


@pytest.mark.parametrize(
    "options",
    [
        {"filter": "db3"},
        {"levels": 0},
        {"levels": 9},
        {"levels": 2.5},
        {"axes": "rows"},
        {"where": "never"},
        {"details_deadline_ms": -1},
        {"details_deadline_ms": "soon"},
        {"domain": "normalized"},
        {"details_deadline_ms": 5, "error_feedback": False},
    ],
    ids=str,
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match="wavelet"):
        codecs.get("wavelet", **options)
