"""``Compression``: what a user may write, and what a wrong word is answered with."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("horovod.torch")

from hvd_gradflow import codec  # noqa: E402
from hvd_gradflow.codec.policy import AdaptivePolicy  # noqa: E402
from hvd_gradflow.errors import ConfigError, UnsupportedError  # noqa: E402
from hvd_gradflow.frontend import choice as common  # noqa: E402
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


def test_a_transport_stays_with_its_choice(monkeypatch):
    from hvd_gradflow.torch import AccuracyGuard

    class Theirs(common.Choice):
        """Another framework's."""

    monkeypatch.delenv("GRADFLOW_TRANSPORT", raising=False)
    udp = Compression.log4(block=512, transport="udp")
    late = udp(deadline_ms=20)
    assert repr(late) == "Compression.log4(block=512, transport='udp', deadline_ms=20.0)"
    assert late.policy().codec == Compression.log4(block=512).policy().codec
    assert udp(rounding="stochastic").route == udp.route and late(transport="udp") == late
    assert len({Compression.log4(block=512), udp, late, late(deadline_ms=20.0)}) == 3
    assert udp(transport=None) == Compression.log4(block=512) != udp
    assert pickle.loads(pickle.dumps(late)) == late
    assert eval(repr(late)) == late
    theirs = common.as_choice(late, Theirs)
    assert type(theirs) is Theirs and (theirs.options, theirs.route) == (late.options, late.route)
    guarded = as_choice(AccuracyGuard(late))
    assert guarded.route == late.route and as_choice(AccuracyGuard("log4")).route == Compression.log4.route
    assert as_choice(codec.get("log4"))(transport="udp").route == udp.route
    none = Compression.none(transport="udp")
    assert none.of_horovod() is None and not none.lossless
    assert Compression.fp16(transport="mpi").of_horovod() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transport": "tcp"}, "Compression.log4: transport='tcp': expected one of mpi, udp"),
        (
            {"transport": "udp", "deadline_ms": -1},
            "deadline_ms=-1: expected a finite number of at least 0 and",
        ),
        ({"transport": "udp", "deadline_ms": "20"}, "deadline_ms='20': expected a finite number"),
        ({"transport": "udp", "deadline_ms": float("nan")}, "deadline_ms=nan: expected a finite number"),
        ({"transport": "mpi", "deadline_ms": 20}, "deadline_ms=20 with transport='mpi': only udp lets go"),
        (
            {"transport": "udp", "deadline_ms": 0.02},
            "deadline_ms=0.02: expected milliseconds, 0 or at least 0.1",
        ),
        ({"transport": "udp", "deadline_ms": "20"}, "at most 60000, in milliseconds"),
        ({"transport": "udp", "deadline": 20}, "of every compression: transport, deadline_ms"),
        ({"deadline_ms": 20}, r"deadline_ms=20 by MPI \(GRADFLOW_TRANSPORT\).*write transport=\"udp\""),
        ({"transport": []}, r"transport=\[\]: expected one of mpi, udp"),
    ],
)
def test_a_wrong_transport_is_refused_where_it_is_written(options, words, monkeypatch):
    monkeypatch.delenv("GRADFLOW_TRANSPORT", raising=False)
    with pytest.raises(ConfigError, match=words):
        Compression.log4(**options)


def test_a_deadline_alone_where_the_environment_says_udp(monkeypatch):
    monkeypatch.setenv("GRADFLOW_TRANSPORT", "udp")
    assert Compression.log4(deadline_ms=20).route.given == {"deadline_ms": 20.0}
    assert Compression.log4(transport="mpi", deadline_ms=0).route.deadline_ms == 0


@pytest.mark.parametrize("name", ["none", "topk", "powersgd"])
def test_a_deadline_that_changes_nothing_is_told(caplog, name):
    getattr(Compression, name)(transport="udp", deadline_ms=20)
    assert f"deadline_ms=20 changes nothing: {name} always arrives exactly" in caplog.text
