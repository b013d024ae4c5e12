"""Ranks on several nodes: started as on a cluster, with right results, and an end when a link is cut."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.mpi]
HERE = Path(__file__).parent
VALUES = HERE.parent / "mpi" / "reduce_values.py"
REDUCING = HERE / "reducing.py"


def checked(done):
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_horovodrun_with_hosts_as_users_write_it(lab):
    program = [sys.executable, HERE / "allreduce.py"]
    out = checked(
        lab.run("node0", ["horovodrun", "-np", "4", "-H", "node0:2,node1:2", *program], timeout=120)
    )
    untagged = re.sub(r"\[1,0\]<stdout>:", "", out)
    places = ast.literal_eval(untagged[untagged.index("places ") :].removeprefix("places "))
    assert places == [(f"node{n}", i, 2, [10.0] * 3) for n in (0, 1) for i in (0, 1)]


def test_mpirun_with_hosts_as_users_write_it(lab):
    out = checked(lab.run("node0", ["mpirun", "-np", "3", "-H", "node0:2,node1:2", "hostname"], timeout=60))
    assert sorted(out.split()) == ["node0", "node0", "node1"]


@pytest.mark.parametrize(
    ("slots", "nodes"), [([2, 2], "[[0, 1], [2, 3]]"), ([2, 1, 1], "[[0, 1], [2], [3]]")], ids=str
)
def test_values_on_real_nodes(make_lab, slots, nodes):
    with make_lab(nodes=len(slots), slots=slots) as lab:
        out = checked(lab.launch([sys.executable, VALUES], timeout=150))
        bytes_sent = [node["tx_bytes"] for node in lab.counters().values()]
    assert f"nodes {nodes}" in out
    assert "FAILED" not in out, out
    assert out.count("OK ") == 49
    assert min(bytes_sent) > 1_000_000


@pytest.fixture
def pair(make_lab, tmp_path):
    """Two nodes of one rank that reduce; `begin(steps, ...)` returns, once they do, what will be the end."""
    with make_lab(nodes=2, slots=1) as lab, ThreadPoolExecutor(1) as pool:

        def begin(steps, timeout=60, **env):
            marker = tmp_path / "marker"
            end = pool.submit(
                lab.launch, [sys.executable, REDUCING, steps, marker], timeout=timeout, env=env or None
            )
            while not marker.exists() and not end.done():
                time.sleep(0.01)
            return end

        yield lab, begin


def test_a_node_slowed_to_a_tenth_ends_with_the_same_result(pair):
    lab, begin = pair
    end = begin(9)
    lab.set_rate("node1", "100mbit")
    assert "nodes [[0], [1]], 1 result after 9 steps" in checked(end.result())


def test_a_cut_link_ends_the_job_with_the_rank_named(pair):
    lab, begin = pair
    # mpirun tells the far node to stop and waits for its answer: as long as TCP tries, which is 15 minutes by
    # default and half of one where an administrator says so.
    for node in lab.hosts:
        assert lab.run(node, ["sysctl", "-qw", "net.ipv4.tcp_retries2=3"], timeout=10).returncode == 0
    end = begin(10**6, GRADFLOW_PROGRESS_TIMEOUT="3")
    lab.cut("node1")
    cut = time.monotonic()
    done = end.result()
    assert time.monotonic() - cut < 25
    assert done.returncode not in (0, None)
    assert "PeerError: tensor 'ramp': ranks [1] have been silent for 3.0 s" in done.stdout


def test_open_mpi_itself_finds_out_when_it_may_ask(pair):
    """What the batch scripts set, with shorter times: the launcher notices before the ranks do."""
    lab, begin = pair
    asking = {
        f"OMPI_MCA_oob_tcp_keepalive_{k}": v for k, v in (("time", "2"), ("intvl", "1"), ("probes", "2"))
    }
    end = begin(10**6, GRADFLOW_PROGRESS_TIMEOUT="40", **asking)
    lab.cut("node1")
    cut = time.monotonic()
    done = end.result()
    assert time.monotonic() - cut < 25
    assert done.returncode not in (0, None)
    assert "node1" in done.stderr


def test_a_launch_ends_at_its_time(pair):
    _, begin = pair
    end = begin(10**6, timeout=5)
    with pytest.raises(subprocess.TimeoutExpired):
        end.result()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(REDUCING).encode() in _command(path)]
    assert not left


def _command(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
