"""The scripts, as a user runs them: on one rank, on two, and as batch jobs."""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import types
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from hvd_gradflow import cli
from mpi_launcher import horovodrun, mpirun

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
DIGITS = SCRIPTS / "train_digits_torch.py"
FASHION = SCRIPTS / "train_fashion_torch.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # of scripts that are run without a launcher
TEXT = SCRIPTS / "train_text_torch.py"
KEYS = {
    "metric",
    "accuracy",
    "seconds",
    "steps",
    "gradient_bytes_per_step",
    "wire_bytes_per_step",
    "wire_ratio",
    "weights_sha256",
    "compression",
    "options",
    "max_staleness",
    "world_size",
}
ONE_PASS = ("--epochs", "1", "--limit", "256")


@pytest.fixture
def train(tmp_path):
    """Run a training script on some ranks and return its summary."""

    def run(ranks, script, *args, launch=mpirun, metric="accuracy"):
        file = tmp_path / "summary.json"
        words = [script, *args, "--json", file]
        if ranks == 0:
            subprocess.run([sys.executable, *map(str, words)], check=True, timeout=180, env=ENVIRONMENT)
        else:
            done = launch(ranks, words, timeout=180).check()
            assert "the same on all ranks" in done.stdout
            assert "[#" not in done.stderr  # no progress bar where there is no terminal
        summary = json.loads(file.read_text())
        assert set(summary) == KEYS - {"accuracy"} | {metric}
        assert summary["world_size"] == max(ranks, 1) == len(summary["weights_sha256"])
        assert len(set(summary["weights_sha256"])) == 1
        return summary

    return run


def told_of_the_demo(recorded, capsys):
    """What `gradflow analyze` makes of a recording of the demo on two ranks."""
    file = recorded / "found.json"
    assert cli.main(["analyze", str(recorded), "--json", str(file)]) == 0
    assert "6.weight  dense" in capsys.readouterr().out
    (found,) = json.loads(file.read_text())["streams"]
    assert (found["ranks"], found["elements"], found["importance"]) == (2, 151_306, "energy")
    assert found["steps"][:2] == [0, 25]
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["6.weight"]["zeros"] > 0.05  # images have black borders
    assert rows["6.weight"]["bands"][0] > 0.25  # neighbours in the picture are alike
    assert 0.2 < found["model"]["codecs"]["log4"]["bytes"] * 2 < 1.1
    assert found["model"]["noise_scale"] > 0  # which takes both ranks' files
    assert sorted(p.name for p in recorded.iterdir()) == ["found.json", "rank0.jsonl", "rank1.jsonl"]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("compression", "ratio"), [pytest.param("log4", 7.0, marks=pytest.mark.slow), ("adaptive", 3.5)]
)
def test_the_demo_learns_and_sends_little(train, compression, ratio, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRADFLOW_ANALYZE", str(tmp_path / "recorded"))  # it neither disturbs nor is disturbed
    summary = train(2, DIGITS, "--compression", compression, launch=horovodrun)
    monkeypatch.delenv("GRADFLOW_ANALYZE")
    told_of_the_demo(tmp_path / "recorded", capsys)
    assert summary["accuracy"] >= 0.95
    assert summary["wire_ratio"] >= ratio
    assert summary["gradient_bytes_per_step"] == 4 * 151_306
    # Two ranks, a node each: scatter of one half and gather of the other make up one gradient.
    assert summary["wire_bytes_per_step"] * summary["wire_ratio"] == pytest.approx(4 * 151_306, rel=0.05)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_target_ratio_is_held(train):
    args = ("--compression", "adaptive", "--target-ratio", "6", *ONE_PASS, "--batch-size", "8")
    # More than asked for, since these gradients are sparse: deadzone needs less than it was given.
    assert 6 <= train(2, DIGITS, *args)["wire_ratio"] < 12


@pytest.mark.mpi
@pytest.mark.slow
def test_uncompressed_is_the_measure_of_the_ratio(train):
    assert train(2, DIGITS, "--compression", "none", *ONE_PASS)["wire_ratio"] == pytest.approx(1.0)


@pytest.mark.mpi
def test_stock_horovod_sends_as_little(train):
    summary = train(2, DIGITS, "--stock-horovod", "--compression", "log4", *ONE_PASS)
    assert summary["wire_ratio"] >= 7.0


@pytest.mark.mpi
@pytest.mark.slow
def test_nothing_leaves_a_node(train):
    summary = train(2, DIGITS, "--ranks-per-node", "0", *ONE_PASS)
    assert (summary["wire_bytes_per_step"], summary["wire_ratio"]) == (0, None)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("--optimizer", "adamw"), marks=pytest.mark.slow),
        ("--backward-passes", "2", "--max-staleness", "1"),
        pytest.param(("--amp",), marks=pytest.mark.slow),
        pytest.param(("--amp", "--stock-horovod"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_variants_train_alike_on_all_ranks(train, args):
    summary = train(2, DIGITS, *ONE_PASS, *args, "--batch-size", "16")
    assert summary["steps"] == (4 if "--backward-passes" in args else 8)


@pytest.mark.mpi
def test_one_rank_needs_no_launcher(train):
    summary = train(0, DIGITS, *ONE_PASS)
    assert summary["wire_ratio"] is None
    assert summary["steps"] == 8


@pytest.mark.mpi
@pytest.mark.slow
def test_equal_seeds_give_equal_weights(train):
    one, other = (train(2, DIGITS, *ONE_PASS, "--seed", "1") for _ in range(2))
    assert one["weights_sha256"] == other["weights_sha256"]


@pytest.mark.mpi
def test_fashion_with_batch_norm(train, small_fashion):
    summary = train(
        2, FASHION, "--data", small_fashion, "--epochs", "1", "--limit", "128", "--batch-size", "16"
    )
    assert summary["steps"] == 4
    assert 700_000 < summary["gradient_bytes_per_step"] / 4 < 900_000


@pytest.fixture
def small_bible(tmp_path, monkeypatch):
    """A program `bible` that prints some verses, in front of PATH."""
    program = tmp_path / "bible"
    verse = "And the earth was without form, and void; and darkness was upon the face of the deep."
    program.write_text(f"#!/bin/sh\nfor i in $(seq 60); do echo 'Ge1:2 {verse}'; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return verse


@pytest.mark.mpi
@pytest.mark.slow
def test_the_text_is_judged_by_its_validation_loss(train, small_bible):
    args = ("--steps", "6", "--batch-size", "4", "--compression", "log4", "--option", "block=64")
    summary = train(2, TEXT, *args, metric="validation_loss")
    assert summary["metric"] == "validation_loss"
    assert summary["options"] == {"block": 64}
    assert summary["steps"] == 6
    assert 0 < summary["validation_loss"] < np.log(63)  # better than any character as likely as any other
    assert summary["wire_ratio"] > 6.5
    assert summary["gradient_bytes_per_step"] == 4 * 817_664


def test_the_text_in_pieces(monkeypatch, small_bible):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training import data

    text = data.bible(context=16)
    whole = (small_bible + "\n") * 60
    letters = ["".join(data.ALPHABET[c] for c in piece) for piece in text.train_x[:19]]
    assert "".join(letters) == whole[: 19 * 16]
    assert text.train_y[0].tolist() == [data.ALPHABET.index(c) for c in whole[1:17]]
    assert "".join(data.ALPHABET[c] for c in text.test_x[0]) == whole[19 * 16 : 20 * 16]
    assert len(text.train_y) + len(text.test_y) == (len(whole) - 1) // 16
    assert len(data.bible(limit=5).train_y) == 5


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "is missing: apt-get install bible-kjv"),
        ("exit 3", "exit status 3. To install it anew: apt-get install"),
        ("echo 'Ge1:1 <In the beginning>'", "printed 19 characters, unknown ones: ['<', '>']; expected"),
    ],
)
def test_without_its_text_the_fix_is_named(monkeypatch, tmp_path, program, words):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training import data, options

    file = tmp_path / "bible"
    if program:
        file.write_text(f"#!/bin/sh\n{program}\n")
        file.chmod(0o755)
    with pytest.raises(options.UsageError) as error:
        data.bible(program=str(file))
    assert words in str(error.value)


FRONTIER = SCRIPTS / "frontier.py"


def frontier(journal, data, *words, timeout=200):
    """Run scripts/frontier.py on the task of images."""
    words = [FRONTIER, "--tasks", "fashion", "--seeds", 3, "--data", data, "--journal", journal, *words]
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT
    )
    return done, [json.loads(line) for line in journal.read_text().splitlines()]


@pytest.mark.mpi
def test_the_frontier_trains_all_settings_in_one_launch(tmp_path, small_fashion):
    only = (
        "--only",
        "log4",
        "horovod-fp16",
        "ddp-powersgd-1",
        "--steps",
        12,
        "--json",
        tmp_path / "rows.json",
    )
    done, events = frontier(tmp_path / "journal.jsonl", small_fashion, *only)
    assert done.returncode == 0, done.stderr
    found = {e["setting"]: e for e in events if e["event"] == "done"}
    assert list(found) == ["none", "horovod-fp16", "ddp-powersgd-1", "log4"]
    assert all(e["same_weights"] and e["steps"] == 12 for e in found.values())
    sent = {key: e["wire_bytes_per_step"] / (4 * 308_074) for key, e in found.items()}
    assert sent["none"] == pytest.approx(1, rel=0.01)
    assert sent["horovod-fp16"] == 0.5
    assert sent["log4"] == pytest.approx(1 / 7.6, rel=0.05)
    assert 0.01 < sent["ddp-powersgd-1"] < 0.03
    hashes = {e["weights_sha256"][0] for e in found.values()}
    assert len(hashes) == 4  # each went its own way
    rows = json.loads((tmp_path / "rows.json").read_text())["tasks"]["fashion"]
    assert [row["setting"] for row in rows] == ["none", "horovod-fp16", "log4", "ddp-powersgd-1"]
    again, same = frontier(tmp_path / "journal.jsonl", small_fashion, *only, "--resume", timeout=60)
    assert (again.returncode, same) == (0, events)  # there was nothing left to train


@pytest.mark.mpi
@pytest.mark.slow
def test_what_fails_costs_the_frontier_one_setting(tmp_path, small_fashion):
    from tradeoff import launch, tasks
    from tradeoff.journal import Journal, in_order

    journal, task, said = Journal(tmp_path / "journal.jsonl"), tasks.BY_KEY["fashion"], []
    runs = in_order(["none", "log4", "int4"], [0, 1], task.key)
    recipes = {f"fashion/{key}": {**task.recipe(1), "options": {}} for key in ("none", "log4", "int4")}
    recipes["fashion/log4"]["batch_size"] = 4096  # more than there are samples
    launch.trained(runs, recipes, journal, small_fashion, 120, said.append)
    done = [run for run in runs if run.setting != "log4"]
    assert list(journal.results(recipes)) == done
    assert len(said) == 1 and "fashion, log4, seed 0: failed, and is left out: " in said[0]
    assert "128 samples a rank make no step of 1 x 4096" in said[0]


def test_missing_images_are_one_sentence_with_the_fix(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FASHION), "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=ENVIRONMENT,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("apt-get install dataset-fashion-mnist\n")


@pytest.mark.mpi
def test_an_unknown_compression_lists_those_there_are():
    done = mpirun(2, [DIGITS, "--compression", "int9"], timeout=180)
    assert done.returncode not in (0, 124)
    assert "unknown compression 'int9'; known: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--epochs", "0"], "--epochs 0: expected at least 1"),
        (["--backward-passes", "-1"], "--backward-passes -1"),
        (["--steps", "0"], "--steps 0: expected at least 1"),
        (["--max-staleness", "-1"], "--max-staleness -1: expected at least 0"),
        (["--max-staleness", "1", "--amp"], "--max-staleness with --amp: the loss scale"),
        (["--max-staleness", "1", "--stock-horovod"], "--max-staleness with --stock-horovod"),
        (["--steps", "5", "--epochs", "1"], "--epochs: not allowed with argument --steps"),
        (["--option", "block"], "'block': expected KEY=VALUE"),
        (
            ["--compression", "log4", "--target-ratio", "8"],
            "--target-ratio belongs to --compression adaptive",
        ),
    ],
)
def test_options_that_make_no_sense(monkeypatch, capsys, args, words):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training import options

    with pytest.raises(SystemExit) as ended:
        options.parse(options.parser("test", epochs=1, batch_size=1, lr=0.1), args)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("hashes", "code"), [(["a" * 64, "a" * 64], 0), (["a" * 64, "b" * 64], 1)])
def test_different_weights_end_in_exit_code_1(monkeypatch, capsys, tmp_path, hashes, code):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("GRADFLOW_RANKS_PER_NODE", "0")  # put back afterwards: the script sets it
    from training import options, summary

    seen = dict.fromkeys(KEYS, 1) | {"weights_sha256": hashes, "compression": "log4", "wire_ratio": 8.0}
    seen |= {"metric": "accuracy", "options": {"block": 64}, "max_staleness": 1}
    monkeypatch.setattr(summary, "measured", lambda *args: seen)
    monkeypatch.setattr(summary.exchanges, "start", lambda options: types.SimpleNamespace(rank=0))
    parser = options.parser("test", epochs=1, batch_size=1, lr=0.1)
    file = tmp_path / "x.json"
    assert summary.run(parser, lambda o: None, lambda o: None, ["--json", str(file)]) == code
    said = capsys.readouterr()
    assert ("weights differ" in said.err) == bool(code)
    assert "log4, block=64, 1 ranks, gradients of 1 steps ago" in said.out
    assert "100.00 % after 1 steps" in said.out
    assert json.loads(file.read_text())["weights_sha256"] == hashes


def test_shards_are_disjoint_and_complete(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import torch
    from training.data import shard

    shuffled = [shard(11, r, 3, torch.Generator().manual_seed(5)).tolist() for r in range(3)]
    assert [len(s) for s in shuffled] == [3, 3, 3]
    assert len(set(chain(*shuffled))) == 9
    in_order = [shard(11, r, 3).tolist() for r in range(3)]
    assert sorted(chain(*in_order)) == list(range(11))


@pytest.mark.parametrize(("rank0", "terminal"), [(True, True), (True, False), (False, True)])
def test_progress_is_shown_on_rank_0s_terminal_only(monkeypatch, rank0, terminal):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training.loop import Progress

    screen = io.StringIO()
    screen.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress(rank0, 2)
    progress.step(1, "loss 1.0")
    progress.step(2, "loss 0.5")
    progress.end()
    shown = screen.getvalue()
    assert bool(shown) == (rank0 and terminal)
    assert not shown or shown.endswith(f"\r[{'#' * 30}] 2/2 loss 0.5\n")


def test_without_horovod_the_fix_is_named(tmp_path):
    (tmp_path / "horovod.py").write_text("raise ImportError('No module named horovod')\n")
    env = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, str(DIGITS)], capture_output=True, text=True, timeout=100, env=env)
    assert done.returncode == 1
    assert done.stderr.endswith("`gradflow check` says what is missing\n")
    assert "Traceback" not in done.stderr


def test_the_schedule_warms_up_and_ends_low(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training.loop import schedule

    rates = [schedule(i, 100) for i in range(100)]
    assert rates[0] == 0.1
    assert max(rates) == 1.0 == rates[9]
    assert 0 < rates[-1] < 0.02
    assert schedule(0, 1) == 1.0


JOBS = sorted((SCRIPTS / "slurm").glob("*.sh"))


@pytest.fixture
def batch(tmp_path):
    """Run a batch script with stand-ins for SLURM's and MPI's programs; return the launcher's arguments."""
    for name in ("srun", "mpirun", "horovodrun"):
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\necho "{name}"; for word in "$@"; do echo "$word"; done\nenv >&2\n')
        tool.chmod(0o755)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    scontrol.chmod(0o755)

    def run(job, **extra):
        slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "3,2"}
        env = {**os.environ, **slurm, "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "7", **extra}
        env |= {"PATH": f"{tmp_path}:{env['PATH']}", "HOROVODRUN": str(tmp_path / "horovodrun")}
        done = subprocess.run(
            ["bash", str(job), "--epochs", "2"],
            capture_output=True,
            text=True,
            timeout=30,
            env=env,
            check=True,
        )
        return done.stdout.splitlines(), done.stderr

    return run


@pytest.mark.parametrize("job", JOBS, ids=lambda p: p.stem)
def test_batch_scripts_start_the_training_on_every_rank(batch, job):
    words, environment = batch(job, GRADFLOW_WINDOW="5")
    assert words[0] == job.stem.removeprefix("train_")
    script = words.index("scripts/train_fashion_torch.py")
    rest = ["--ranks-per-node", "0", "--json", "gradflow-7.json", "--epochs", "2"]
    assert words[script + 1 :] == rest
    assert "GRADFLOW_WINDOW=5" in environment.splitlines()
    options = words[:script]
    if job.stem == "train_mpirun":
        assert options[options.index("GRADFLOW_WINDOW") - 1] == "-x"
    if job.stem != "train_srun":
        assert "n1:3,n2:2" in options
        assert options[options.index("-np") + 1] == "5"


def test_there_is_a_batch_script_for_each_launcher():
    assert [job.stem for job in JOBS] == ["train_horovodrun", "train_mpirun", "train_srun"]


@pytest.mark.parametrize("job", JOBS, ids=lambda p: p.stem)
def test_batch_scripts_are_sound(job):
    subprocess.run(["bash", "-n", str(job)], check=True, timeout=30)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(job)], check=True, timeout=60)


def test_parser_defaults_make_every_rank_a_node(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("GRADFLOW_RANKS_PER_NODE", "0")
    from training import options

    parsed = options.parse(options.parser("test", epochs=1, batch_size=1, lr=0.1), [])
    assert isinstance(parsed, argparse.Namespace)
    assert os.environ["GRADFLOW_RANKS_PER_NODE"] == "1"


def test_parser_takes_options_of_compressions_and_a_rate_for_each_optimizer(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("GRADFLOW_RANKS_PER_NODE", "0")
    from training import options

    def parsed(*words):
        return options.parse(options.parser("test", steps=7, batch_size=1, lr=0.1, adamw_lr=0.002), words)

    words = ["block=64", "margin=.5", "error_feedback=False", "seed=None", "rounding=nearest", "x=[1]"]
    got = parsed(*(word for option in words for word in ("--option", option))).compression_options
    plain = {"block": 64, "margin": 0.5, "error_feedback": False, "seed": None}
    assert got == plain | {"rounding": "nearest", "x": "[1]"}
    assert isinstance(got["block"], int)
    assert parsed("--compression", "adaptive", "--target-ratio", "8").compression_options == {
        "target_ratio": 8
    }
    assert (parsed().lr, parsed("--optimizer", "adamw").lr, parsed("--lr", "3").lr) == (0.1, 0.002, 3)
    assert (parsed().steps, parsed().epochs, parsed("--epochs", "2").steps) == (7, None, None)


def test_batches_are_full_and_shared_out(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from training.data import batches

    of_rank = [[b.tolist() for b in batches(23, r, 2, 4, seed=1, epoch=0)] for r in (0, 1)]
    assert [list(map(len, of)) for of in of_rank] == [[4, 4]] * 2
    assert len(set(chain(*chain(*of_rank)))) == 16
    assert of_rank[0] != [b.tolist() for b in batches(23, 0, 2, 4, seed=1, epoch=1)]


def compare(*words):
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "train_compare.py"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env=ENVIRONMENT,
    )


@pytest.mark.parametrize("way", ["log4:", "log4:64", "adaptive:8,9", ":block=2", "log4:=3"])
def test_a_comparison_refuses_what_it_cannot_read(tmp_path, way):
    done = compare(way, "--json-folder", tmp_path)
    assert done.returncode == 2
    assert f"{way!r}: expected NAME, NAME:KEY=VALUE,KEY=VALUE or adaptive:RATIO" in done.stderr


def test_a_comparison_hands_options_on(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import train_compare

    options = argparse.Namespace(ranks=2, script="x.py", arguments=["--steps", "9"])
    words = train_compare.command(options, "log4:block=64,rounding=stochastic", 3, tmp_path)
    start = words.index("--compression")
    assert words[start : start + 2] == ["--compression", "log4"]
    assert words[start + 6 :] == ["--option", "block=64", "--option", "rounding=stochastic", "--steps", "9"]
    assert train_compare.parts("adaptive:8") == train_compare.parts("adaptive:target_ratio=8")


def test_a_comparison_is_by_the_metric_of_the_summaries(tmp_path):
    seen = {"metric": "validation_loss", "validation_loss": 1.25, "wire_bytes_per_step": 2e6, "wire_ratio": 4}
    for way in ("none", "log4-block=64,rounding=stochastic"):
        (tmp_path / f"{TEXT.stem}-{way}-0.json").write_text(json.dumps(seen))
    ways = ("none", "log4:block=64,rounding=stochastic")
    done = compare(*ways, "--script", TEXT.name, "--json-folder", tmp_path, "--seeds", 0)
    assert done.stdout.splitlines() == [
        "| compression | validation loss, nats a character | kB a step | less than uncompressed |",
        "| --- | --- | --- | --- |",
        "| none | 1.2500 (1.2500 to 1.2500) | 2000 | 4.00 x |",
        "| log4, block 64, rounding stochastic | 1.2500 (1.2500 to 1.2500) | 2000 | 4.00 x |",
    ]


def test_a_comparison_goes_on_where_it_was_and_prints_a_table(tmp_path):
    for way, accuracy in (("none", 0.9), ("adaptive-8", 0.8)):
        for seed in (0, 1):
            seen = {"accuracy": accuracy + seed / 100, "wire_bytes_per_step": 2e6, "wire_ratio": 4.0}
            (tmp_path / f"train_digits_torch-{way}-{seed}.json").write_text(json.dumps(seen))
    done = compare("none", "adaptive:8", "--script", DIGITS.name, "--json-folder", tmp_path, "--seeds", 0, 1)
    assert done.stdout.splitlines()[2:] == [
        "| none | 90.50 (90.00 to 91.00) | 2000 | 4.00 x |",
        "| adaptive, target ratio 8 | 80.50 (80.00 to 81.00) | 2000 | 4.00 x |",
    ]
