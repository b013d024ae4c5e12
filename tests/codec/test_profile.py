"""Measured times as lines, and how sure of them one can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_gradflow.codec.profile import Fit, fit

SMALL, LARGE = 65536, 1048576
seconds = st.floats(1e-6, 10.0)


@given(st.floats(1e-5, 1.0), st.floats(1e-11, 1e-6))
def test_a_line_is_found(latency, per_byte):
    line = Fit(latency, per_byte)
    found = fit({size: [line.seconds(size)] * 3 for size in (SMALL, LARGE)})
    assert found.latency == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert found.per_byte == pytest.approx(per_byte, rel=1e-3, abs=1e-14)
    assert found.error(16 * LARGE) == 0.0


@given(st.lists(seconds, min_size=1, max_size=7), st.lists(seconds, min_size=1, max_size=7))
def test_whatever_was_measured_time_is_positive_and_grows(small, large):
    found = fit({SMALL: small, LARGE: large})
    assert found.latency >= 0.0 and found.per_byte >= 0.0
    assert 0.0 < found.seconds(4096) <= found.seconds(LARGE) <= found.seconds(100 * LARGE)
    assert found.error(4096) >= 0.0


@given(st.lists(seconds, min_size=3, max_size=7), st.permutations(range(7)))
def test_the_order_of_measurements_is_of_no_matter(values, order):
    mixed = [values[i] for i in order if i < len(values)]
    assert fit({SMALL: values, LARGE: values}) == fit({SMALL: mixed, LARGE: mixed})


def test_one_disturbed_measurement_does_not_count():
    quiet = fit({SMALL: [1e-3] * 5, LARGE: [1e-2] * 5})
    disturbed = fit({SMALL: [1e-3] * 5, LARGE: [1e-2, 1e-2, 0.4, 1e-2, 1e-2]})
    assert disturbed.per_byte == quiet.per_byte


def test_what_scatters_is_less_certain_and_more_so_far_away():
    found = fit({SMALL: [1.0e-3, 1.1e-3, 1.3e-3], LARGE: [10e-3, 11e-3, 14e-3]})
    assert 0.0 < found.error(LARGE) < found.error(16 * LARGE)
    assert found.error(LARGE) == pytest.approx(1e-3 / 3**0.5)


def test_a_time_that_falls_with_the_size_is_doubted():
    found = fit({1 << 16: [0.005] * 3, 1 << 22: [0.002] * 3})
    assert found.seconds(1 << 22) == pytest.approx(0.002) and found.seconds(1 << 24) == pytest.approx(0.008)
    assert found.error(1 << 22) >= 0.003 and found.error(1 << 24) >= 0.012
    assert fit({1 << 16: [0.002] * 3, 1 << 22: [0.002] * 3}).error(1 << 22) == 0.0
