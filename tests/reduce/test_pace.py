"""How fast rounds go, and what counts as a change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_gradflow.reduce.pace import SETTLING, Pace, Window, busy


def test_busy_time_counts_what_overlaps_once():
    assert busy([]) == 0.0
    assert busy([(1.0, 2.0), (1.5, 3.0), (5.0, 6.0), (5.2, 5.5)]) == pytest.approx(3.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=9))
def test_busy_time_is_the_measure_of_the_union(pairs):
    intervals = [(float(begin), float(begin + length)) for begin, length in pairs]
    assert busy(intervals) == len({t for begin, length in pairs for t in range(begin, begin + length)})


def windows(pace, factors):
    return [pace.changed(Window(f, f * 0.1)) for f in factors]


def test_a_window_is_the_median_of_its_rounds_once_they_have_settled():
    pace = Pace(3, 1.5)
    rounds = [(9.0, 1.0)] * SETTLING + [(1.0, 1.0), (7.0, 1.0), (2.0, 1.0), (4.0, 1.0)]
    assert [pace.add(*r) for r in rounds] == [None] * (SETTLING + 2) + [Window(2.0, 2.0), None]


@pytest.mark.parametrize(("factors", "found"), [
    ([1.0, 1.4, 0.7, 1.4], [None] * 4),
    ([1.0, 2.0, 2.0, 2.1], [None, None, 2.0, 2.1]),
    ([1.0, 2.0, 1.0, 2.0], [None] * 4),
    ([1.0, 2.0, 0.5, 0.5], [None, None, None, 0.5]),
    ([2.0, 1.0, 1.0], [None, None, 0.5]),
])  # fmt: skip
def test_what_lasts_counts(factors, found):
    assert windows(Pace(8, 1.5), factors) == found


def test_slow_changes_add_up():
    found = windows(Pace(8, 1.5), [1.1**i for i in range(9)])
    assert found[:5] == [None] * 5 and found[-1] == pytest.approx(1.1**8)


def test_what_was_far_off_from_the_first_counts_too():
    pace = Pace(8, 1.5)
    assert windows(pace, [50.0, 50.0, 50.0]) == [None, 50.0, 50.0]


def test_what_takes_no_time_is_not_worth_a_measurement():
    pace = Pace(8, 1.5)
    assert [pace.changed(Window(f, f * 1e-5)) for f in (1.0, 9.0, 9.0, 9.0)] == [None] * 4


def test_after_a_decision_all_begins_anew():
    pace = Pace(1, 1.5)
    windows(pace, [1.0, 3.0])
    pace.restart()
    assert windows(pace, [3.0, 3.0, 3.0]) == [None] * 3
    assert pace.add(1.0, 1.0) is None
