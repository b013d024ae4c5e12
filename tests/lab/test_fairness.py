"""Datagrams and a TCP connection through one bottleneck: neither starves the other."""

from __future__ import annotations

import bench_fairness
import pytest
from links import pair
from links.controls import known

pytestmark = pytest.mark.lab

LEAST = 0.2  # of what both get; 0.4 to 0.6 after some seconds
TRIES = 3  # a host that stands still makes one of them lose much at once; who is starved is so each time


def test_tcp_and_datagrams_share_a_link(make_lab, tmp_path):
    with make_lab(nodes=2, rate="100mbit", delay="5ms") as lab:
        bench_fairness.prepare(lab)
        ranks = pair.ranks(lab, tmp_path, ["udp"])
        try:
            for control in known(["cubic", "reno"])[:1]:
                found = []
                while len(found) < TRIES:  # TCP joins: what datagrams that start make it lose takes seconds
                    ours, tcp = bench_fairness.beside(lab, ranks, control, seconds=4, tcp_first=False)
                    found.append((round(ours, 1), round(tcp, 1)))
                    assert ours + tcp > 70, (control, found)  # Mbit/s: the link is in use
                    if min(ours, tcp) > LEAST * (ours + tcp):
                        break
                else:
                    raise AssertionError((control, found))
        finally:
            ranks.end()
