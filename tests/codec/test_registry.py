"""Names, options, wire ids."""

import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.codec import registry
from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.none import NoneCodec
from hvd_gradflow.device import wire
from hvd_gradflow.errors import ConfigError


@pytest.fixture
def own_tables(monkeypatch):
    monkeypatch.setattr(registry, "_by_name", dict(registry._by_name))
    monkeypatch.setattr(registry, "_by_id", dict(registry._by_id))


@dataclass(frozen=True)
class Negated(NoneCodec):
    """A codec of another package."""

    name: ClassVar[str] = "negated"
    wire_id: ClassVar[int] = 200
    volume: int = 1


def test_names_and_ids_of_the_wire_format():
    table = {codecs.get(name).wire_id: name for name in codecs.names()}
    assert table == {
        1: "none",
        2: "fp16",
        3: "bf16",
        4: "int8",
        5: "int4",
        6: "int2",
        7: "log4",
        8: "deadzone",
        9: "sign1",
        10: "topk",
        11: "powersgd",
        12: "wavelet",
    }
    assert [codecs.registry.by_wire_id(i).name for i in sorted(table)] == [table[i] for i in sorted(table)]


def test_unknown_names_list_what_exists():
    with pytest.raises(ConfigError, match=r"unknown codec 'log5'; known: bf16, .*log4"):
        codecs.get("log5")
    words = r"codec 'int8': unknown option 'blok'; known: block, entropy, error_feedback, rounding, seed"
    with pytest.raises(ConfigError, match=words):
        codecs.get("int8", blok=3)
    with pytest.raises(ConfigError, match=r"codec 'none': unknown option 'block'; known: it has none"):
        codecs.get("none")(block=32)
    with pytest.raises(ConfigError, match="unknown wire id 99"):
        registry.by_wire_id(99)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block": 48}, "block=48: expected a power of two"),
        ({"block": 16}, "block=16"),
        ({"block": 65536}, "block=65536"),
        ({"block": 64.0}, "expected an integer"),
        ({"rounding": "up"}, "rounding='up': expected one of nearest, stochastic"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "expected an integer from 0"),
    ],
)
def test_impossible_values_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        codecs.get("log4", **options)


def test_numpy_integers_are_integers():
    assert codecs.get("log4", block=np.int64(64)) == codecs.get("log4", block=64)


@pytest.mark.usefixtures("own_tables")
def test_a_plugin_is_found_like_the_others():
    codecs.register(Negated)
    assert codecs.register(Negated) is Negated  # again, the same class: nothing happens
    assert codecs.get("negated", volume=2).get_config() == {"name": "negated", "volume": 2}
    assert codecs.from_config({"name": "negated", "volume": 2}).volume == 2


@pytest.mark.usefixtures("own_tables")
def test_entry_points_are_loaded(monkeypatch):
    class Entry:
        value = "other_package:Negated"

        @staticmethod
        def load():
            return Negated

    asked = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: asked.append(group) or [Entry])
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    assert codecs.get("negated").wire_id == 200
    assert asked == ["hvd_gradflow.codecs"]


@pytest.mark.usefixtures("own_tables")
@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"name": "log4", "wire_id": 201}, "name 'log4' is taken by Log4"),
        ({"name": "mine", "wire_id": 7}, "wire id 7 is taken by Log4"),
        ({"name": "mine", "wire_id": 0}, "wire id 0, expected 1 to 255"),
        ({"name": "mine", "wire_id": 256}, "wire id 256"),
        ({"name": "", "wire_id": 201}, "name ''"),
    ],
)
def test_what_cannot_be_registered(attributes, words):
    with pytest.raises(ConfigError, match=words):
        codecs.register(type("Mine", (NoneCodec,), attributes))


def test_a_codec_without_a_decoder_is_refused():
    class Mute(Codec):
        name = "mute"
        wire_id = 202

        def encode(self, x, **_):
            return np.zeros(32, np.uint8)

        def max_encoded_size(self, n):
            return 32

    with pytest.raises(ConfigError, match=r"'mute' has no decode\(\)"):
        codecs.register(Mute)


def test_every_id_of_the_wire_table_has_a_decoder(monkeypatch):
    registry._check_wire_table()
    monkeypatch.setitem(wire.CODECS, 99, ("sparse", 2, 1, False))
    with pytest.raises(ConfigError, match=r"wire id 99 \(sparse\) has no decoder"):
        registry._check_wire_table()


def test_the_import_is_light():
    code = (
        "import sys, hvd_gradflow.codec\n"
        "heavy = {'torch', 'tensorflow', 'mpi4py', 'horovod', 'hvd_gradflow.device._kernels'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": 64},
        {"rounding": "stochastic", "seed": 3, "entropy": True},
        {"error_feedback": False},
    ],
)
def test_a_label_can_be_read_and_written_in_a_script(options):
    codec = registry.get("int8", **options)
    name, read = registry.parsed(registry.label(codec))
    assert registry.get(name, **read) == codec
    script = registry.written(registry.label(codec))
    compression = SimpleNamespace(int8=registry.get("int8"))
    assert eval(script, {"Compression": compression}) == codec
