"""Fixed policies, and what counts as one."""

from dataclasses import dataclass

import pytest

from hvd_gradflow import codec
from hvd_gradflow.codec.policy import AdaptivePolicy, FixedPolicy, Policy, as_policy
from hvd_gradflow.errors import ConfigError


@dataclass(frozen=True)
class Spec:
    name: str
    shape: tuple
    dtype: str = "float32"
    kind: str = "dense"


SPECS = [Spec("w", (64, 64)), Spec("k", (64, 32, 3, 3), kind="conv"), Spec("b", (64,), kind="vector")]


def test_one_codec_for_all_but_the_small():
    table = FixedPolicy(codec.get("log4")).start(SPECS, "energy", min_elements=1024)
    assert {name: c.name for name, c in table.items()} == {"w": "log4", "k": "log4", "b": "none"}


def test_the_bound_itself_is_compressed():
    policy = FixedPolicy(codec.get("int8"))
    for bound, name in ((64, "int8"), (65, "none")):
        assert policy.start([SPECS[2]], "energy", min_elements=bound)["b"].name == name


def test_a_scalar_has_one_element_and_an_empty_tensor_none():
    specs = [Spec("scalar", ()), Spec("empty", (0, 5))]
    table = FixedPolicy(codec.get("int8")).start(specs, "energy", min_elements=1)
    assert {name: c.name for name, c in table.items()} == {"scalar": "int8", "empty": "none"}


def test_a_fixed_policy_never_changes_and_wants_no_statistics():
    policy = FixedPolicy(codec.get("int8"))
    policy.start(SPECS, "energy", 0)
    assert policy.update({"w": (1.0, 1.0)}) is None
    assert policy.wants_statistics is False


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "int8", "int4", "log4"])
def test_a_name_becomes_a_fixed_policy(name):
    policy = as_policy(name)
    assert isinstance(policy, FixedPolicy)
    assert policy.get_config()["codec"] == codec.get(name).get_config()


def test_options_go_with_a_name_only():
    assert as_policy("int8", block=256).codec.get_config()["block"] == 256
    assert as_policy("adaptive", window=7).get_config()["window"] == 7
    with pytest.raises(ConfigError, match="options"):
        as_policy(codec.get("int8"), block=256)


def test_a_codec_and_a_policy_are_taken_as_they_are():
    chosen = codec.get("log4")
    assert as_policy(chosen).codec is chosen
    policy = FixedPolicy(chosen)
    assert as_policy(policy).codec is chosen


def test_each_stream_gets_an_adaptive_policy_of_its_own():
    policy = AdaptivePolicy(window=9)
    one, other = as_policy(policy), as_policy(policy)
    assert one is not policy
    assert one is not other
    assert one.get_config() == other.get_config() == policy.get_config()


@pytest.mark.parametrize("wrong", ["int9", 8, None, object()])
def test_anything_else_is_refused(wrong):
    with pytest.raises(ConfigError):
        as_policy(wrong)


def test_a_policy_without_a_start_says_so():
    class Half(Policy):
        pass

    with pytest.raises(TypeError, match="Half does not define start"):
        Half().start(SPECS, "energy", 0)
