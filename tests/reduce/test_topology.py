"""Grouping of ranks into nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hvd_gradflow import events
from hvd_gradflow.reduce import topology
from hvd_gradflow.reduce.topology import group_nodes


def test_by_host_in_order_of_the_first_rank():
    assert group_nodes(["b", "a", "b", "a", "a"]) == [[0, 2], [1, 3, 4]]


def test_ranks_per_node_splits_hosts_but_never_joins_them():
    assert group_nodes(["a", "a", "a", "b"], 2) == [[0, 1], [2], [3]]
    assert group_nodes(["a"] * 3, 1) == [[0], [1], [2]]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20), st.integers(0, 5))
def test_every_rank_is_on_one_node_of_its_host(hosts, per_node):
    nodes = group_nodes(hosts, per_node)
    assert sorted(rank for node in nodes for rank in node) == list(range(len(hosts)))
    for node in nodes:
        assert len({hosts[rank] for rank in node}) == 1
        assert not per_node or len(node) <= per_node


def test_what_has_nothing_to_do_on_one_node_is_told_once_a_process(monkeypatch):
    monkeypatch.setattr(topology, "_told", set())
    heard = []
    end = events.subscribe(lambda kind, fields: heard.append((kind, fields["message"])))
    topology.tell_of_no_datagrams("alone", 1)
    topology.tell_of_one_node(1)
    for _ in range(2):
        topology.tell_of_no_datagrams("world", 3)
        topology.tell_of_one_node(3)
    end()
    assert [kind for kind, _ in heard] == ["transport", "warning"]
    assert all("all 3 ranks" in words and "GRADFLOW_RANKS_PER_NODE=1" in words for _, words in heard)
