"""``Compression``: what a user may write, and what a wrong word is answered with."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("horovod.torch")

from hvd_gradflow import codec  # noqa: E402
from hvd_gradflow.codec.policy import AdaptivePolicy  # noqa: E402
from hvd_gradflow.errors import ConfigError, UnsupportedError  # noqa: E402
from hvd_gradflow.torch import Compression  # noqa: E402
from hvd_gradflow.torch.choice import Choice, as_choice  # noqa: E402


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "int8", "int4", "log4", "adaptive", "auto"])
def test_usable_as_it_stands(name):
    choice = getattr(Compression, name)
    assert choice is getattr(Compression, name) and repr(choice) == f"Compression.{name}"
    assert name in dir(Compression) and choice.lossless == (name == "none")
    assert pickle.loads(pickle.dumps(choice)) == choice
    assert pickle.loads(pickle.dumps(Compression)) is Compression


def test_every_codec_is_an_attribute():
    for name in codec.names():
        assert getattr(Compression, name).name == name


def test_options_make_a_copy():
    small = Compression.log4(block=512)
    assert small.options == {"block": 512} and Compression.log4.options == {}
    assert small(rounding="stochastic").options == {"block": 512, "rounding": "stochastic"}
    assert small != Compression.log4 and small == Compression.log4(block=512)
    assert hash(small) == hash(Compression.log4(block=512))


def test_unknown_words_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match=r"'log5'; known: adaptive, auto, .*int8, log4"):
        Compression.log5  # noqa: B018
    assert not hasattr(Compression, "log5")
    with pytest.raises(ConfigError, match=r"'blok'; known: block"):
        Compression.log4(blok=3)
    with pytest.raises(ConfigError, match=r"target_ratio"):
        Compression.adaptive(ratio=3)


def test_unbound_says_what_to_write():
    with pytest.raises(UnsupportedError, match=r"compression=Compression.log4.bind\(model\)"):
        Compression.log4.compress(torch.zeros(3))
    with pytest.raises(UnsupportedError, match=r"import hvd_gradflow.torch as hvd"):
        Compression.log4.decompress(torch.zeros(3), "something")


def test_as_choice():
    from horovod.torch.compression import Compression as theirs

    assert as_choice(Compression.int8) is Compression.int8
    assert as_choice(theirs.fp16) is None
    assert as_choice(codec.get("log4", block=512)).policy().codec.block == 512
    made = as_choice(AdaptivePolicy(target_ratio=8))
    assert made.policy().options.target_ratio == 8
    with pytest.raises(ConfigError, match=r"'log4' of type str: expected one of hvd.Compression"):
        as_choice("log4")
    with pytest.raises(ConfigError, match="configured already"):
        made(target_ratio=4)


def test_what_horovod_has_too():
    from horovod.torch.compression import Compression as theirs

    assert Compression.none.of_horovod() is theirs.none
    assert Compression.fp16.of_horovod() is theirs.fp16
    assert Compression.int8.of_horovod() is None
    assert Choice("fp16", made=codec.get("fp16")).of_horovod() is None
