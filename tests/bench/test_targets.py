"""`scripts/bench_targets.py`: figures from rows, the table, and what is said where a case cannot run."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from targets.cases import CASES

    return {case.key: case for case in CASES}


def row(system, codec, seconds, **more):
    return {"system": system, "codec": codec, "seconds": seconds, "bytes": 64_000_000, **more}


def figures(case, rows):
    return [(target.figure(rows), target.met(target.figure(rows))) for target in case.targets]


def test_figures_are_ratios_of_rows(cases):
    rows = [row("horovod", "fp32", 2.0), row("ddp", "fp16", 0.4), row("gradflow", "log4", 0.1)]
    rows[-1]["raw_mpi_fraction"] = 0.96
    assert figures(cases["link"], rows) == [(0.96, False), (4.0, True), (20.0, True)]
    rows = [row("horovod", "fp16", 6.0), row("gradflow", "deadzone", 0.5)]
    rows.append(row("gradflow", "deadzone:error_feedback=False", 0.25))
    assert figures(cases["thin-plain"], rows) == [(12.0, False), (24.0, True)]
    assert figures(cases["thin-text"], rows) == [(12.0, True), (24.0, True)]
    rows = [row("horovod", "fp32", 2.0, link_bytes=64e6), row("gradflow", "log4", 0.1, link_bytes=8e6)]
    assert figures(cases["nodes-of-two"], rows) == [(20.0, True), (8.0, False)]
    assert figures(cases["four-nodes"], [row("gradflow", "log4", 1, floor_fraction=0.8)]) == [(0.8, True)]


def test_on_one_host_each_size_has_its_own_target(cases):
    rows = [row("horovod", "fp32", 0.4), row("gradflow", "none", 0.1)]
    small = [{**r, "bytes": 4000, "seconds": s} for r, s in zip(rows, (0.001, 0.002))]
    assert figures(cases["host"], rows + small) == [(4.0, True), (2.0, False)]
    assert figures(cases["small-tensors"], rows) == [(0.25, True)]


def test_the_best_step_of_ours_with_both_errors(cases):
    errors = {"relative_error": 0.2, "relative_error_last": 0.3}
    rows = [row("ddp", "powersgd1", 0.2, **errors), row("ddp", "fp32", 0.01, **errors)]
    rows += [row("gradflow", "none", 0.5, **errors), row("gradflow", "log4", 0.1, **errors)]
    assert figures(cases["train"], rows) == [(0.5, True)]
    assert (
        cases["train"].note(rows) == "gradient error, first and last step: log4 0.2, 0.3; powersgd1 0.2, 0.3"
    )


def test_auto_is_judged_where_it_is_worst(cases):
    def at(size, **mbps):
        names = {"horovod": ("horovod", "fp32"), "none": ("gradflow", "none"), "auto": ("gradflow", "auto")}
        return [row(*names[who], 1, mbps=speed) | {"bytes": size} for who, speed in mbps.items()]

    rows = at(4000, horovod=10, none=5, auto=9) + at(64, horovod=1, none=4, auto=40)
    assert figures(cases["auto-1gbit"], rows) == [(0.9, False)]


def test_every_case_is_a_command_that_exists(cases):
    from hvd_gradflow import cli

    for case in cases.values():
        parsed = cli._parser().parse_args(["bench", *case.bench.split()])
        assert parsed.run


def test_the_list_and_unknown_cases():
    def run(*words):
        command = [sys.executable, SCRIPTS / "bench_targets.py", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    listed = run("--list", "--only", "link", "host").stdout
    assert "netlab.py --nodes 2 --slots 1 --rate 1gbit -- " in listed
    assert "launch.sh 2 " in listed and "train" not in listed
    refused = run("--only", "lnk")
    assert refused.returncode == 2 and "four-nodes" in refused.stderr
