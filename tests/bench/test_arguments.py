"""Sizes, rates and lists, as they are written on the command line."""

import argparse
import sys

import pytest

from hvd_gradflow import cli
from hvd_gradflow.bench.arguments import launch_rank, link_rate, listed, rate, size
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


def test_the_rank_is_the_launchers():
    assert launch_rank({}) == 0 == launch_rank({"SLURM_PROCID": ""})
    assert launch_rank({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}) == 3
    assert launch_rank({"PMI_RANK": "2"}) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["allreduce", "--sizes", "4KB,3B"], "3B: expected a multiple of 4 bytes"),
        (["allreduce", "--codecs", "int9"], "unknown codec 'int9'"),
        (["allreduce", "--similarity", "7"], "similarity"),
        (["allreduce", "--model", "cnn"], "name their file with --data"),
        (["allreduce", "--plot", "/no/such/place.png"], "there is no directory /no/such"),
        (["train", "--systems", "mxnet"], "unknown system 'mxnet'"),
        (["train", "--json", "/"], "/: cannot be written"),
        (["host", "--size", "3B"], "3B: expected a multiple of 4 bytes"),
    ],
)
def test_wrong_options_are_told_once_and_before_anything_is_loaded(words, said, monkeypatch, capsys):
    for module in ("torch", "mpi4py", "horovod", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    assert cli.main(["bench", *words]) == 1
    assert said in capsys.readouterr().err
    if "/" in words[-1]:
        return  # files are rank 0's to write, and to look at
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert cli.main(["bench", *words]) == 1
    assert capsys.readouterr().err == ""


def test_what_the_parser_refuses_is_told_once(monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for rank, said in (("0", "--seconds"), ("1", "")):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        with pytest.raises(SystemExit) as ended:
            cli.main(["bench", "train", "--seconds", "-1"])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err if said else capsys.readouterr().err == ""
