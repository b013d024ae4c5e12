"""What a lab's links do: rate, loss, delay, a cut, counters."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
PROGRAM = [sys.executable, "-I", str(Path(__file__).with_name("traffic.py"))]


@contextmanager
def serving(lab, node="node1"):
    server = lab.popen(node, [*PROGRAM, "serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"ready\n"
        yield
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def ask(lab, *words):
    done = lab.run("node0", [*PROGRAM, *words], timeout=30)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def served(lab):
    with serving(lab):
        yield lab


def test_the_rate_holds_and_changes(served):
    for name, expected in (("100mbit", 100), ("20mbit", 20)):
        served.set_rate("node0", name)
        before = served.counters()
        rate = ask(served, "stream", "node1", 1.5)
        after = served.counters()
        # Headers take 4 to 5 % of it.
        assert 0.9 * expected < rate < expected
        sent = after["node0"]["tx_bytes"] - before["node0"]["tx_bytes"]
        received = after["node1"]["rx_bytes"] - before["node1"]["rx_bytes"]
        assert sent > 1.5 * rate / 8 * 1e6 * 0.9
        assert abs(sent - received) < 0.2 * sent
    served.set_rate("node0", "1gbit")


def test_loss_takes_packets_both_ways(served):
    assert len(ask(served, "echo", "node1", 50)) == 50
    served.set_loss("node0", 0.3)
    back = len(ask(served, "echo", "node1", 100))
    served.set_loss("node0", 0.0)
    # 0.7 squared, plus or minus 4 standard deviations.
    assert 29 <= back <= 69
    assert len(ask(served, "echo", "node1", 50)) == 50


def test_a_cut_link_passes_nothing_until_it_is_mended(served):
    served.cut("node1")
    assert ask(served, "echo", "node1", 3) == []
    served.mend("node1")
    assert len(ask(served, "echo", "node1", 3)) >= 2  # one may wait for the address to be found again


def test_delay_is_from_node_to_node(make_lab):
    with make_lab(nodes=2, rate="1gbit", delay="5ms") as lab, serving(lab):
        times = ask(lab, "echo", "node1", 50)
        assert len(times) == 50
        assert min(times) >= 0.010
        # On a machine at rest 10.3 ms.
        assert statistics.median(times) < 0.016
        lab.cut("node0")
        assert ask(lab, "echo", "node1", 2) == []
        lab.mend("node0")
        # Order is kept, and the rate: TCP would slow down otherwise.
        lab.set_rate("node0", "50mbit")
        assert 42 < ask(lab, "stream", "node1", 1.5) < 50


def test_nodes_have_names_memory_and_a_network_of_their_own(lab):
    script = "hostname; touch /dev/shm/of-$(hostname); ls /dev/shm; ls /sys/class/net; getent hosts node1"
    for node in lab.hosts:
        done = lab.run(node, ["sh", "-c", script], timeout=10)
        assert done.stdout.split() == [node, f"of-{node}", "eth0", "lo", "10.77.0.2", "node1"], done
    assert not list(Path("/dev/shm").glob("of-node*"))
