"""Datagrams and a TCP connection through one bottleneck: neither starves the other."""

from __future__ import annotations

import bench_fairness
import pytest
from links import pair
from links.controls import known

pytestmark = pytest.mark.lab

LEAST = 0.2  # of what both get; 0.4 to 0.6 after some seconds


def test_tcp_and_datagrams_share_a_link(make_lab, tmp_path):
    with make_lab(nodes=2, rate="100mbit", delay="5ms") as lab:
        bench_fairness.prepare(lab)
        ranks = pair.ranks(lab, tmp_path, ["udp"])
        try:
            for control in known(["cubic", "reno"])[:1]:
                ours, tcp = bench_fairness.beside(lab, ranks, control, seconds=4, tcp_first=True)
                assert ours + tcp > 80, (control, ours, tcp)  # Mbit/s: the link is in use
                assert min(ours, tcp) > LEAST * (ours + tcp), (control, ours, tcp)
        finally:
            ranks.end()
