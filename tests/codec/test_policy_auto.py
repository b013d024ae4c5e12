"""The choice by measured times."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_gradflow import codec
from hvd_gradflow.codec.policy import AutoPolicy, as_policy
from hvd_gradflow.codec.profile import Fit, Profile
from hvd_gradflow.errors import ConfigError

MB = 1 << 20


@dataclass(frozen=True)
class Spec:
    name: str
    shape: tuple
    dtype: str = "float32"
    kind: str = "dense"


SPECS = [
    Spec("w", (1024, 1024)),
    Spec("k", (64, 64, 3, 3), kind="conv"),
    Spec("norm", (4096,), kind="vector"),
    Spec("b", (10,), kind="vector"),
]
BUCKETS = [["w"], ["k"], ["norm"], ["b"]]
BITS = {"none": 32, "fp16": 16, "int8": 8, "log4": 4, "deadzone": 2}


def started(importance="energy", **options):
    policy = AutoPolicy(**options)
    return policy, policy.start(SPECS, importance, min_elements=1024)


def link(policy, rate, latency=1e-4, kernel=0.0, error=0.0):
    """A profile: so many bytes a second, and seconds a byte for whatever is encoded."""
    codecs = {c for ladder in policy.ladders().values() for c in ladder}
    fits = {}
    for c in codecs:
        per_byte = BITS.get(c.name, 32) / 32 / rate + (kernel if c.lossy else 0.0)
        fits[c] = Fit(latency, per_byte, ((65536, error), (MB, error)))
    return Profile(fits)


def chosen(policy, profile):
    return {name: c.name for name, c in policy.choose(profile, BUCKETS).items()}


def test_before_anything_was_measured_nothing_is_encoded():
    assert {c.name for c in started()[1].values()} == {"none"}


def test_a_thin_link_takes_the_least_bytes_and_a_fast_one_none():
    policy, _ = started()
    assert chosen(policy, link(policy, rate=6e6)) == {
        "w": "deadzone",
        "k": "deadzone",
        "norm": "fp16",
        "b": "none",
    }
    assert set(chosen(policy, link(policy, rate=5e9, kernel=1e-9)).values()) == {"none"}


def test_with_adam_what_drops_small_coordinates_is_left_out():
    policy, _ = started("coordinate")
    assert chosen(policy, link(policy, rate=6e6))["w"] == "log4"
    assert not policy.may_normalize("coordinate")
    policy, _ = started("coordinate", allow=("none", "deadzone"))
    taken = policy.choose(link(policy, rate=6e6), BUCKETS)["w"]
    assert (taken.domain, taken.step) == ("normalized", 0.7)
    assert policy.may_normalize("coordinate") and not policy.may_normalize("energy")


def test_where_little_is_gained_the_faithful_one_stays():
    policy, _ = started(allow=("none", "fp16"))
    none, fp16 = policy.ladders()["w"]

    def by(gain):
        return chosen(policy, Profile({none: Fit(0.0, 1e-8 * (1 + gain)), fp16: Fit(0.0, 1e-8)}))["w"]

    assert (by(0.09), by(0.12)) == ("none", "fp16")


def test_what_is_not_certain_is_not_chosen():
    policy, _ = started(allow=("none", "fp16"))
    assert chosen(policy, link(policy, 1e8, error=0.0))["w"] == "fp16" and policy.certain
    assert chosen(policy, link(policy, 1e8, error=0.02))["w"] == "none" and not policy.certain


def test_small_buckets_and_large_ones_choose_for_themselves():
    policy, _ = started(allow=("none", "log4"))
    profile = link(policy, rate=1e8, latency=20e-3)
    assert chosen(policy, profile) | {"norm": "", "b": ""} == {"w": "log4", "k": "none", "norm": "", "b": ""}


@given(
    st.floats(1e5, 1e11),
    st.floats(1e-6, 1.0),
    st.floats(0.0, 1e-8),
    st.sampled_from(["energy", "coordinate"]),
)
def test_never_much_slower_than_any_allowed_one(rate, latency, kernel, importance):
    policy, _ = started(importance)
    profile = link(policy, rate, latency, kernel)
    table = policy.choose(profile, BUCKETS)
    for spec, size in ((SPECS[0], 4 * MB), (SPECS[1], 4 * 36864), (SPECS[2], 16384)):
        ladder = policy.ladders()[spec.name]
        assert table[spec.name] in ladder
        best = min(profile.seconds(c, size) for c in ladder)
        assert profile.seconds(table[spec.name], size) <= 1.1 * best * (1 + 1e-9)
        for more in ladder[: ladder.index(table[spec.name])]:  # the most faithful of those
            assert profile.seconds(more, size) > 1.1 * best * (1 - 1e-9)


def test_float64_counts_double_where_it_stays_what_it_is():
    policy = AutoPolicy(allow=("none", "fp16"))
    policy.start([Spec("d", (1000, 1000), "float64")], "energy", 1024)
    none, fp16 = policy.ladders()["d"]
    level = Profile({none: Fit(0.0, 1e-8), fp16: Fit(0.0, 1e-8)})
    assert policy.choose(level, [["d"]])["d"] == fp16


def test_the_order_is_that_of_fidelity_whatever_is_named_first():
    policy, _ = started(allow=("deadzone", "log4", "int8", "bf16", "fp16", "int4", "none"))
    ladder = [c.name for c in policy.ladders()["w"]]
    assert ladder == ["none", "fp16", "bf16", "int8", "int4", "log4", "deadzone"]
    assert [c.name for c in policy.ladders()["norm"]] == ["none", "fp16", "bf16"]


def test_without_none_something_is_always_encoded():
    policy, table = started(allow="log4,int8")
    assert {name: c.name for name, c in table.items()} == {
        "w": "int8",
        "k": "int8",
        "norm": "int8",
        "b": "none",
    }
    assert set(chosen(policy, link(policy, rate=1e12, kernel=1e-9)).values()) == {"int8", "none"}


def test_codecs_with_options_are_taken_as_they_are():
    coarse = codec.get("deadzone", target_ratio=30)
    policy, _ = started("coordinate", allow=["none", coarse])
    assert policy.choose(link(policy, 1e6), BUCKETS)["w"] is coarse
    assert policy.get_config()["allow"] == ["none", coarse.get_config()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow": ("none", "fp17")}, r"'fp17'; known: bf16, .*fp16.*did you mean fp16"),
        ({"allow": "adaptive"}, "known: bf16"),
        ({"allow": ()}, "allow is empty, expected some of bf16"),
        ({"allow": " , "}, "allow is empty"),
        ({"allow": 8}, "allow=8, expected names"),
        ({"allow": [8]}, "8 in allow, expected the name of a codec"),
        ({"margin": -0.1}, "margin=-0.1, expected a number from 0"),
        ({"drift": 1.0}, "drift=1.0, expected a number from 1.05"),
        ({"overhead": 0}, "overhead=0"),
        ({"window": 0}, "window=0, expected a number of rounds"),
        ({"alow": "none"}, "unknown option of auto 'alow'; known: allow, drift"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        as_policy("auto", **options)


def test_a_stream_gets_a_policy_of_its_own_that_says_what_it_was_given():
    policy = as_policy("auto", allow="none,fp16", drift=2.0)
    other = as_policy(policy)
    assert other is not policy and other.get_config() == policy.get_config()
    assert repr(other) == "auto(allow=['none', 'fp16'], margin=0.1, drift=2.0, overhead=0.01, window=8)"
    assert policy(margin=0.2).get_config() == {**policy.get_config(), "margin": 0.2}
