"""The console script: `gradflow check` and `gradflow bench codec`."""

import json
import subprocess
import sys
import types

import pytest

from hvd_gradflow import __version__, check, cli
from hvd_gradflow.errors import ConfigError


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "hvd_gradflow.cli", *args], capture_output=True, text=True, timeout=180
    )


def only(monkeypatch, *probes):
    monkeypatch.setattr(check, "PROBES", probes)


def one(works, needed=True, fix="pip install it"):
    def probe():
        yield check.Finding("section", "thing", works, "seen", fix, needed)

    return probe


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"hvd_gradflow {__version__}")


@pytest.mark.parametrize(
    ("args", "known"), [(["chek"], ["check", "bench"]), (["bench", "codecs"], ["codec"]), ([], ["COMMAND"])]
)
def test_an_unknown_command_names_those_there_are(args, known, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(args)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in known)


def test_check_on_this_machine(tmp_path):
    file = tmp_path / "check.json"
    done = run("check", "--json", str(file))
    found = json.loads(file.read_text())
    assert done.returncode == 0, done.stdout
    assert found["works"] is True
    by_name = {f["name"]: f for f in found["findings"]}
    assert by_name["numpy"]["works"]
    assert by_name["thread level"]["detail"] == "MPI_THREAD_MULTIPLE"
    assert all(name in by_name["codecs"]["detail"].split() for name in ("none", "int8", "log4"))


def test_what_is_needed_and_missing_ends_in_1_with_the_fix(monkeypatch, capsys):
    only(monkeypatch, one(True), one(False, fix="make it"))
    assert cli.main(["check"]) == 1
    said = capsys.readouterr().out
    assert "[ ] thing: seen\n      needed: make it" in said
    assert "The core does not work" in said


def test_what_is_optional_and_missing_ends_in_0(monkeypatch, capsys):
    only(monkeypatch, one(True), one(False, needed=False))
    assert cli.main(["check"]) == 0
    assert "optional: pip install it" in capsys.readouterr().out


def test_a_probe_that_breaks_is_a_finding(monkeypatch, capsys):
    def broken():
        yield check.Finding("a", "b", True, "c")
        raise ZeroDivisionError("of all things")

    only(monkeypatch, broken, one(True))
    assert cli.main(["check"]) == 1
    said = capsys.readouterr().out
    assert "ZeroDivisionError: of all things" in said
    assert "[X] thing" in said


def test_missing_packages_are_findings(monkeypatch):
    def answer(code, seconds=0):
        raise check.ProbeError("ModuleNotFoundError: No module named 'it'")

    monkeypatch.setattr(check, "python_answer", answer)
    monkeypatch.setattr(check, "_distribution", lambda *names: None)
    monkeypatch.setattr(check.shutil, "which", lambda name: None)
    found = check.findings()
    assert not any(f.works for f in found)
    assert all(f.fix for f in found)
    assert not check.works(found)


def test_too_low_a_thread_level_is_not_enough(monkeypatch):
    monkeypatch.setattr(check, "python_answer", lambda code: ["Some MPI 1.0", "MPI_THREAD_SERIALIZED"])
    only(monkeypatch, check.mpi)
    found = check.findings()
    assert not check.works(found)
    assert "MPI_THREAD_SERIALIZED" in check.as_text(found)


def test_a_probe_process_is_heard_through_noise():
    assert check.python_answer("print('noise')\nanswer = [1, 'two']\nprint('more')") == [1, "two"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import time; time.sleep(30)", "no answer within 0.5 s"),
    ],
)
def test_a_probe_process_that_fails_says_why(code, words):
    seconds = 0.5 if "sleep" in code else 30
    with pytest.raises(check.ProbeError, match=words):
        check.python_answer(code, seconds)


@pytest.fixture
def bench(monkeypatch):
    calls = []
    fake = types.SimpleNamespace(run_codec_bench=lambda **options: calls.append(options) or [])
    monkeypatch.setitem(sys.modules, "hvd_gradflow.bench.codec", fake)
    return calls, fake


def test_bench_codec_hands_its_options_on(bench):
    calls, _ = bench
    words = ["bench", "codec", "--megabytes", "4", "--codecs", "int8", "log4", "--repeats", "3"]
    assert cli.main([*words, "--json", "out.json"]) == 0
    assert cli.main(["bench", "codec"]) == 0
    assert calls == [
        {"json_path": "out.json", "megabytes": 4, "codecs": ["int8", "log4"], "repeats": 3},
        {"json_path": None, "megabytes": 64, "codecs": None},
    ]


def test_bench_codec_on_recorded_gradients(monkeypatch):
    calls = []
    fake = types.SimpleNamespace(run_gradient_bench=lambda path, **options: calls.append((path, options)))
    monkeypatch.setitem(sys.modules, "hvd_gradflow.bench.gradients", fake)
    assert cli.main(["bench", "codec", "--gradients", "x.npz", "--repeats", "2", "--json", "out.json"]) == 0
    assert calls == [("x.npz", {"json_path": "out.json", "megabytes": 64, "codecs": None, "repeats": 2})]


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_bench_codec_refuses_what_is_no_size(number):
    with pytest.raises(SystemExit):
        cli.main(["bench", "codec", "--megabytes", number])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("unknown codec 'int9'"), "gradflow: unknown codec 'int9'"),
        (FileNotFoundError(2, "No such file or directory", "x/y.json"), "x/y.json: No such file"),
        (ImportError("No module named 'numpy'"), "No module named 'numpy'; `gradflow check` says"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_1(bench, capsys, error, words):
    _, fake = bench

    def fail(**options):
        raise error

    fake.run_codec_bench = fail
    assert cli.main(["bench", "codec"]) == 1
    assert words in capsys.readouterr().err


def test_bench_codec_measures(tmp_path):
    file = tmp_path / "bench.json"
    done = run(
        "bench", "codec", "--megabytes", "1", "--codecs", "int8", "--repeats", "1", "--json", str(file)
    )
    assert done.returncode == 0, done.stderr
    assert "int8" in done.stdout
    assert json.loads(file.read_text())
