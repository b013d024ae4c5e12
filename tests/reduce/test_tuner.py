"""What the tuner says in words."""

import pytest

from hvd_gradflow.codec import get
from hvd_gradflow.codec.profile import Fit, Profile
from hvd_gradflow.reduce.tuner import _measured, _rounded


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (140.2, 2, "140"),
        (0.00123, 2, "0.0012"),
        (1234567, 3, "1230000"),
        (9.96, 2, "10"),
        (0, 3, "0"),
        (2.5, 3, "2.5"),
    ],
)
def test_numbers_are_rounded_and_never_exponential(value, digits, text):
    assert _rounded(value, digits) == text


def test_what_was_measured_reads_like_a_sentence():
    slow, fast = get("none"), get("int8")
    profile = Profile({slow: Fit(0.1402, 1e-9), fast: Fit(0.002, 2e-6)}, where="2 nodes")
    said = _measured(profile, [slow, fast])
    assert "none 140 ms and 1000 MB/s" in said
    assert "e+" not in said
