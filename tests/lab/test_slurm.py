"""The batch scripts in a real SLURM: trained to the end, and failed where the training fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab.errors import LabError
from lab.slurm import Slurm

pytestmark = [pytest.mark.lab, pytest.mark.mpi]
ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "scripts" / "slurm"
PLACES = Path(__file__).with_name("places.py")


@pytest.fixture(scope="module")
def slurm(make_lab, with_slurm):
    with make_lab(nodes=2, slots=2) as lab, Slurm(lab) as slurm:
        slurm.lab = lab
        yield slurm


@pytest.fixture
def submit(slurm, tmp_path, small_fashion):
    """Submit a batch script from the repository's root, with little data; returns the job and its summary."""

    def run(script, *arguments, options=(), head=lambda text: text, **env):
        file = tmp_path / f"train_{script}.sh"
        file.write_text(head((JOBS / file.name).read_text()))
        summary = tmp_path / "summary.json"
        words = ["--data", small_fashion, "--epochs", 1, "--limit", 128, "--batch-size", 32]
        job = slurm.sbatch(
            file,
            *[*words, "--json", summary, *arguments],
            options=[f"--output={tmp_path}/%x-%j.out", *options],
            timeout=200,
            env={"PYTHON": sys.executable, **env},
            cwd=ROOT,
        )
        return job, json.loads(summary.read_text()) if summary.exists() else None

    return run


def test_srun_starts_processes_on_all_nodes(slurm):
    done = slurm.lab.run("node1", ["srun", "--nodes=2", "--ntasks-per-node=2", "hostname"], timeout=60)
    assert sorted(done.stdout.split()) == ["node0", "node0", "node1", "node1"], done


@pytest.mark.parametrize("script", ["srun", "mpirun", "horovodrun"])
def test_the_batch_script_trains(submit, slurm, script):
    before = slurm.lab.counters()["node1"]["tx_bytes"]
    # A setting that only rank 0 got would be refused.
    job, summary = submit(script, "--compression", "log4", GRADFLOW_WINDOW="5")
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job
    assert "the same on all ranks" in job.output
    assert "ranks" in job.output and "Traceback" not in job.output
    assert summary["world_size"] == 2
    assert len(set(summary["weights_sha256"])) == 1
    assert summary["wire_ratio"] > 7
    assert (
        slurm.lab.counters()["node1"]["tx_bytes"] - before > summary["wire_bytes_per_step"] * summary["steps"]
    )


@pytest.fixture
def half_of_node0(slurm):
    """Another job, which leaves room for one rank on node0 and two on node1."""
    words = ["sbatch", "--parsable", "--nodelist=node0", "--cpus-per-task=2", "--output=/dev/null"]
    done = slurm.lab.run("node0", [*words, "--wrap=sleep 100"], timeout=60)
    assert done.returncode == 0, done.stderr
    yield
    slurm.lab.run("node0", ["scancel", done.stdout.strip()], timeout=60)


def test_ranks_are_where_slurm_put_them(submit, half_of_node0):
    """Without `--ntasks-per-node` it is SLURM that shares the ranks out among the nodes."""

    def head(text):
        assert "#SBATCH --ntasks-per-node=1\n" in text
        return text.replace("#SBATCH --ntasks-per-node=1\n", "#SBATCH --ntasks=3\n")

    job, _ = submit("mpirun", head=head, SCRIPT=str(PLACES))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job
    assert "places node0 node1 node1" in job.output


@pytest.mark.parametrize("script", ["srun", "mpirun"])
def test_a_training_that_fails_fails_the_job(submit, script):
    job, _ = submit(script, "--no-such-option")
    assert job.state == "FAILED", job
    assert job.exit_code != 0
    assert "--no-such-option" in job.output


def test_what_slurm_refuses_is_said(slurm, tmp_path):
    with pytest.raises(LabError, match=r"sbatch refused .*train_srun.sh: sbatch: error: .* than permitted"):
        slurm.sbatch(JOBS / "train_srun.sh", options=["--nodes=9"], cwd=tmp_path)


def test_a_job_is_cancelled_at_its_time(slurm, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\necho begun\nexec sleep 304\n")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        slurm.sbatch(script, timeout=3, cwd=tmp_path)
    assert caught.value.output.startswith("begun\n")
