"""Links that lose a tenth of all datagrams: reductions, exact, in time or over dying paths, and training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def bad(make_lab):
    """Two nodes between which one of ten datagrams is lost; MPI's own packets are not, to be quick."""
    with make_lab(nodes=2, rate="500mbit") as lab:
        lose(lab)
        yield lab


@pytest.fixture
def far(make_lab):
    """The same, with a round trip of 20 ms."""
    with make_lab(nodes=2, rate="200mbit", delay="10ms") as lab:
        lose(lab)
        yield lab


def lose(lab):
    for node in ("node0", "node1"):
        on(lab, node, "ethtool -K eth0 tso off gso off gro off")
        on(lab, node, "iptables -A INPUT -p udp -m statistic --mode random --probability 0.1 -j DROP")


def on(lab, node, command):
    done = lab.run(node, command.split(), timeout=10)
    assert done.returncode == 0, done


def launch(lab, monkeypatch, case, **settings):
    monkeypatch.setenv("GRADFLOW_TRANSPORT", "udp")
    for name, value in settings.items():
        monkeypatch.setenv(f"GRADFLOW_{name}", value)
    both_fine(lab, "bad_links.py", case, said=f"fine {case}")


def both_fine(lab, program, *arguments, said):
    done = lab.launch(
        [sys.executable, str(Path(__file__).with_name(program)), *arguments], launcher="mpirun", timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(said) == 2


def test_exact_results_are_those_of_mpi(bad, monkeypatch):
    launch(bad, monkeypatch, "exact")


def test_what_misses_the_deadline_is_owed(bad, monkeypatch):
    launch(bad, monkeypatch, "deadline", DEADLINE_MS="0.2")


def test_what_matters_arrives_within_the_deadline(far, monkeypatch):
    launch(far, monkeypatch, "weighed", DEADLINE_MS="16")


def test_a_training_has_the_weights_it_has_by_mpi(bad):
    both_fine(bad, "bad_links_training.py", said="fine training")


def test_two_paths_of_which_one_dies_after_the_other(bad, monkeypatch):
    monkeypatch.setenv("GRADFLOW_TRANSPORT", "udp")
    both_fine(bad, "two_paths.py", said="fine")
