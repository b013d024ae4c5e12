"""Settings from the environment."""

import re
from dataclasses import fields
from itertools import takewhile
from pathlib import Path

import pytest

from hvd_gradflow import codec, config
from hvd_gradflow.codec.policy import POLICIES
from hvd_gradflow.config import Config, load, variable
from hvd_gradflow.errors import ConfigError
from hvd_gradflow.reduce.route import Route

ROOT = Path(__file__).resolve().parent.parent


def test_defaults_without_variables():
    assert load({}) == Config()


def test_variables_of_others_are_left_alone():
    assert load({"HOROVOD_CYCLE_TIME": "1", "GRADFLOWER": "x"}) == Config()


def test_variables_of_the_build_are_left_alone():
    assert load({"GRADFLOW_WITH_CUDA": "1", "GRADFLOW_WITH_HIP": "auto"}) == Config()


def test_values_take_the_type_of_their_default():
    found = load({"GRADFLOW_CHUNK_KIB": "64", "GRADFLOW_BUCKET_MIB": "2.5", "GRADFLOW_BACKEND": "numpy"})
    assert (found.chunk_kib, found.bucket_mib, found.backend) == (64, 2.5, "numpy")
    assert isinstance(found.chunk_kib, int)


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("GRADFLOW_WINDOW", "3")
    assert load().window == 3


def test_an_unknown_variable_is_refused_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"unknown variable GRADFLOW_CHUNK_KB \(did you mean GRADFLOW_CHUNK_KIB\?\)"
    ):
        load({"GRADFLOW_CHUNK_KB": "64"})


def test_an_unknown_variable_far_from_all_lists_them():
    with pytest.raises(
        ConfigError, match=r"unknown variable GRADFLOW_ZZZZZZZZZZZZZZZ; known: .*GRADFLOW_WINDOW"
    ):
        load({"GRADFLOW_ZZZZZZZZZZZZZZZ": "1"})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("GRADFLOW_CHUNK_KIB", "many", "GRADFLOW_CHUNK_KIB='many': expected an integer"),
        ("GRADFLOW_CHUNK_KIB", "1.5", "expected an integer"),
        ("GRADFLOW_CHUNK_KIB", "0", "GRADFLOW_CHUNK_KIB=0: expected a finite number of at least 4"),
        ("GRADFLOW_BUCKET_MIB", "x", "expected a number"),
        ("GRADFLOW_BUCKET_MIB", "nan", "expected a finite number"),
        ("GRADFLOW_SUBMIT_TIMEOUT", "inf", "expected a finite number"),
        ("GRADFLOW_PROGRESS_TIMEOUT", "-1", "at least 0.05"),
        ("GRADFLOW_BACKEND", "gpu", "GRADFLOW_BACKEND='gpu': expected one of cpu, numpy"),
        ("GRADFLOW_SIMD", "sse", "expected one of auto, avx512, avx2, portable"),
        ("GRADFLOW_RANKS_PER_NODE", "-2", "at least 0"),
    ],
)
def test_impossible_values_are_named(key, value, words):
    with pytest.raises(ConfigError, match=words):
        load({key: value})


def test_with_options_changes_and_refuses():
    assert Config().with_options(window=2).window == 2
    with pytest.raises(ConfigError, match=r"unknown setting 'windows'; known: .*window"):
        Config().with_options(windows=2)
    with pytest.raises(ConfigError, match="GRADFLOW_WINDOW=-1"):
        Config().with_options(window=-1)


def test_what_depends_on_the_transport():
    assert Config().resolved().window == 16
    assert Config(transport="udp").resolved().window == 64
    late = Config(transport="udp", deadline_ms=20.0).resolved()
    assert (late.window, late.chunk_kib) == (1024, 32)
    assert Config(transport="udp", window=5).resolved().window == 5
    with pytest.raises(ConfigError, match="GRADFLOW_DEADLINE_MS=20 with GRADFLOW_TRANSPORT=mpi: only udp"):
        Config(deadline_ms=20.0).resolved()


def test_what_ranks_must_agree_on_leaves_out_what_may_differ():
    shared = Config().shared()
    assert "chunk_kib" in shared
    assert not {"simd", "shm_dir"} & set(shared)


@pytest.mark.parametrize("name", [f.name for f in fields(Config)])
def test_each_setting_is_documented(name):
    page = (ROOT / "docs" / "configuration.md").read_text()
    default = getattr(Config(), name)
    row = next((line for line in page.splitlines() if line.startswith(f"| `{variable(name)}`")), None)
    assert row is not None, f"docs/configuration.md has no row for {variable(name)}"
    written = f"{default:g}" if isinstance(default, float) else str(default) or "unset"
    assert f"| `{written}` |" in row, f"{row}: the default is {written}"


def table(first):
    """The rows of the table in docs/configuration.md whose first column is headed so."""
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    for i, line in enumerate(lines):
        if line.startswith(f"| {first} |"):
            body = takewhile(lambda row: row.startswith("|"), lines[i + 2 :])
            yield from ([cell.strip() for cell in row.strip("|").split("|")] for row in body)


def test_each_option_of_a_codec_is_documented_with_those_that_take_it():
    documented = {row[0].strip("`"): row for row in table("option") if len(row) == 4}
    by_option = {}
    for name in codec.names():
        for option in codec.get(name).options():
            by_option.setdefault(option, set()).add(name)
    assert set(documented) == set(by_option)
    for option, takers in by_option.items():
        _, default, codecs, _ = documented[option]
        listed = set(re.findall(r"`(\w+)`", codecs))
        if not codecs.startswith("those"):
            assert (set(codec.names()) - listed if codecs.startswith("all but") else listed) == takers
        assert default == f"`{getattr(codec.get(min(takers)), option)}`"


def test_each_codec_is_documented():
    names = {name for row in table("name") for name in re.findall(r"`(\w+)`", row[0])}
    assert names == {*codec.names(), *POLICIES}


def test_each_option_of_a_policy_is_documented():
    documented = {name for row in table("option") if len(row) == 3 for name in re.findall(r"`(\w+)`", row[0])}
    options = {option for policy in POLICIES.values() for option in policy().get_config()}
    assert documented | {"name"} == options


def test_each_option_of_a_route_is_documented():
    documented = {row[0].strip("`"): row[1] for row in table("option of a compression")}
    assert documented == {f.name: f"`{f.default}`" for f in fields(Route)}


def test_only_settings_are_documented():
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith(f"| `{config.PREFIX}")}
    assert rows == {variable(f.name) for f in fields(Config)}
