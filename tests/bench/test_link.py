"""Bytes on the link: the text of /proc/net/dev, and whose count."""

from pathlib import Path

import pytest

from hvd_gradflow.bench.floor import floor_seconds
from hvd_gradflow.bench.link import Link, sent_bytes
from hvd_gradflow.bench.raw_mpi import volumes

DEV = """\
Inter-|   Receive             |  Transmit
 face |bytes  packets ... (8) |bytes  packets ... (8)
    lo: 111111 10 0 0 0 0 0 0   222222 10 0 0 0 0 0 0
  eth0:1000     7 0 0 0 0 0 0     5000  9 0 0 0 0 0 0
  ib0: 2000     7 0 0 0 0 0 0      600  9 0 0 0 0 0 0
"""


def test_all_interfaces_but_the_loopback_count():
    assert sent_bytes(DEV) == 5600
    assert sent_bytes(Path("/proc/net/dev").read_text()) >= 0
    with pytest.raises(ValueError, match="no interface"):
        sent_bytes("")


def test_between_hosts_one_rank_of_each_reads():
    hosts = ["a", "a", "b", "b"]
    links = [Link(rank, hosts, [[0, 1], [2, 3]]) for rank in range(4)]
    assert {link.source for link in links} == {"interfaces"}
    assert [link.transmitted() > 0 or link._leads for link in links] == [True, False, True, False]
    assert links[0].busiest([10, 0, 30, 0], [1, 2, 3, 4]) == 30


def test_on_one_host_it_is_what_a_contender_gave_to_mpi():
    link = Link(0, ["a"] * 4, [[0, 1], [2, 3]])
    assert link.source == "mpi"
    assert link.busiest([0] * 4, [1, 2, 3, 5]) == 8
    assert link.busiest([0] * 4, None) is None
    one = Link(0, ["a"] * 2, [[0, 1]])
    assert one.source is None and one.busiest([0, 0], [5, 5]) is None


def test_the_floor():
    assert floor_seconds(8e6, 2, 1e9) == pytest.approx(0.064)
    assert floor_seconds(8e6, 4, 1e9) == pytest.approx(0.096)
    assert floor_seconds(8e6, 1, 1e9) == 0


@pytest.mark.parametrize(
    "nodes", [[[0], [1]], [[0, 1], [2, 3]], [[0], [1], [2], [3]], [[0, 1], [2], [3, 4, 5]]]
)
def test_plain_messages_are_as_many_bytes_as_the_floor_counts(nodes):
    encoded, ranks = 6e6, [rank for node in nodes for rank in node]
    found = {rank: volumes(nodes, rank, encoded) for rank in ranks}
    for a in ranks:
        for b, count in found[a].items():
            assert found[b][a] == count
    for node in nodes:
        sent = sum(sum(found[rank].values()) for rank in node)
        assert sent == pytest.approx(2 * (len(nodes) - 1) / len(nodes) * encoded, rel=1e-5)
        assert all(peer not in node for rank in node for peer in found[rank])
