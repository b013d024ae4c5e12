"""Sizes, rates and lists, as they are written on the command line."""

import argparse

import pytest

from hvd_gradflow import cli
from hvd_gradflow.bench.arguments import link_rate, listed, rate, size
from hvd_gradflow.bench.choice import chosen
from hvd_gradflow.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [("4KB", 4000), ("64MB", 64_000_000), ("64MiB", 2**26), ("1.5kb", 1500), ("4096", None), ("16 B", 16)],
)
def test_sizes(text, count):
    if count is None:
        with pytest.raises(argparse.ArgumentTypeError, match="4096: expected a size such as 4KB"):
            size(text)
    else:
        assert size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-4KB", "3B", "0MB", "4 parsecs", "1e3MB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        size(text)


@pytest.mark.parametrize(("text", "bits"), [("1gbit", 10**9), ("100Mbit", 10**8), ("2500", 2500)])
def test_rates(text, bits):
    assert rate(text) == bits
    assert link_rate(None, {"NETLAB_RATE": text}) == bits


def test_the_rate_given_wins_and_an_empty_one_is_none():
    assert link_rate(5, {"NETLAB_RATE": "7"}) == 5
    assert link_rate(None, {"NETLAB_RATE": ""}) is None is link_rate(None, {})


def test_lists_take_commas_and_spaces_and_keep_options_together():
    assert listed(["a,b", "c"]) == ["a", "b", "c"]
    assert listed(["log4,deadzone:step=2,offset=0.25,int8"]) == [
        "log4",
        "deadzone:step=2,offset=0.25",
        "int8",
    ]


def test_systems_and_their_codecs():
    assert chosen(["horovod", "gradflow"], ["log4", "adaptive:target_ratio=8"]) == {
        "horovod": ["fp32", "fp16"],
        "gradflow": ["log4", "adaptive:target_ratio=8"],
    }
    assert chosen(["ddp/fp16", "ddp/powersgd1", "gradflow/none"], ["log4"]) == {
        "ddp": ["fp16", "powersgd1"],
        "gradflow": ["none"],
    }


@pytest.mark.parametrize(
    ("systems", "codecs", "words"),
    [
        (["horovd"], [], "unknown system 'horovd'.*did you mean horovod"),
        (["ddp/fp8"], [], "unknown codec of ddp 'fp8'; known: fp16, fp32, powersgd1"),
        (["gradflow"], ["int9"], "unknown codec 'int9'"),
        (["gradflow"], ["int8:blocks=3"], "unknown option 'blocks'"),
    ],
)
def test_what_does_not_exist_is_named(systems, codecs, words):
    with pytest.raises(ConfigError, match=words):
        chosen(systems, codecs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["allreduce", "--sizes", "4parsecs"], "4parsecs: expected a size"),
        (["allreduce", "--data", "no/such.npz"], "no/such.npz: No such file"),
        (["allreduce", "--systems", "gradflow"], "one rank exchanges nothing"),
        (["train", "--systems", "x"], "unknown system 'x'"),
    ],
)
def test_an_error_is_one_sentence(words, said, capsys):
    assert cli.main(["bench", *words]) == 1
    assert said in capsys.readouterr().err
