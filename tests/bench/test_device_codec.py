"""`gradflow check` and `gradflow bench codec --device` with devices of another package."""

import json
import subprocess
import sys

import pytest
from device.example_device import ExampleDevice
from device.plugin import install

from hvd_gradflow import check, cli
from hvd_gradflow.bench.device_codec import run_device_bench
from hvd_gradflow.device import devices
from hvd_gradflow.errors import DeviceError, UnsupportedError

KEYS = {"codec", "op", "device", "gbps", "moved_gbps", "copy_ratio", "target", "bits_per_element"}


@pytest.fixture
def example(monkeypatch):
    def put(device=ExampleDevice):
        monkeypatch.setattr(devices, "_factories", {"example": device})
        monkeypatch.setattr(devices, "_made", {})
        monkeypatch.setattr(devices, "_plugins_loaded", True)

    put()
    return put


def test_rows(example, tmp_path, capsys):
    file = tmp_path / "rows.json"
    rows = run_device_bench("example", str(file), megabytes=0.02, repeats=1)
    assert json.loads(file.read_text()) == rows
    assert all(set(row) == KEYS for row in rows)
    ops = {"encode", "encode_ef", "decode", "decode_add"}
    assert {row["op"] for row in rows if row["codec"] == "deadzone"} == ops
    assert {row["op"] for row in rows if row["codec"] == "int8"} == {*ops, "encode_stochastic"}
    assert {row["codec"] for row in rows} == ExampleDevice().capabilities().codecs
    assert all(row["copy_ratio"] > 0 for row in rows)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("example: host memory")
    assert len(said) == len(rows) + 2


def test_other_bytes_are_not_timed(example):
    class Wrong(ExampleDevice):
        def _encode(self, spec, x, residual, n, key, *rest):
            super()._encode(spec, x, residual, n - 1, key, *rest)

    example(Wrong)
    with pytest.raises(DeviceError, match=r"payloads of int8 are not those of the CPU .* do not use it"):
        run_device_bench("example", megabytes=0.01, codecs=["int8"], repeats=1)


def test_a_codec_without_kernels_is_refused(example):
    class Few(ExampleDevice):
        def lacks(self, spec):
            return None if spec["id"] == 4 else "no kernels for this one"

    example(Few)
    assert {r["codec"] for r in run_device_bench("example", megabytes=0.01, repeats=1)} == {"int8"}
    with pytest.raises(UnsupportedError, match="device 'example': no kernels for this one"):
        run_device_bench("example", megabytes=0.01, codecs=["log4"], repeats=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "exampel"], "unknown device 'exampel'; known: cpu, example (did you mean example?)"),
        (["--device", "example:7"], "device 'example:7' cannot be used here: there is no example:7"),
        (["--device", "example", "--gradients", "x.npz"], "measured on the CPU: leave --device out"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_anything_else(
    example, monkeypatch, capsys, words, said
):
    monkeypatch.setitem(sys.modules, "hvd_gradflow.bench.device_codec", None)
    assert cli.main(["bench", "codec", *words]) == 1
    assert said in capsys.readouterr().err


def test_the_command_finds_plug_ins_and_their_faults(tmp_path):
    values = {"example": "device.example_device:ExampleDevice", "bad": "no_such_module:Device"}
    environment = install(tmp_path, **values)
    code = "import json\nfrom hvd_gradflow import check\n"
    code += "print(json.dumps(check.as_json(list(check.devices()))['findings']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    found = {f["name"]: f for f in json.loads(done.stdout)}
    assert found["example"]["works"], done.stderr
    assert found["example"]["detail"].startswith("host memory, a thread for each stream; kernels for bf16,")
    assert not found["bad"]["works"] and not found["bad"]["needed"]
    assert "device plug-in 'bad' (no_such_module:Device): ModuleNotFoundError" in found["bad"]["detail"]


def test_check_says_why_a_device_cannot_be_used(monkeypatch):
    answers = iter([[["cuda", "odd"], {}], ["built, no device: install a driver", None, ["int8"]]])

    def answer(code, seconds=0):
        try:
            return next(answers)
        except StopIteration:
            raise check.ProbeError("exit code -11") from None

    monkeypatch.setattr(check, "python_answer", answer)
    text = check.as_text(list(check.devices()))
    assert "[ ] cuda: built, no device: install a driver\n  [ ] odd: exit code -11" in text
    monkeypatch.setattr(check, "python_answer", lambda code: [[], {}])
    assert "[ ] none: gradients are compressed on the CPU" in check.as_text(list(check.devices()))
