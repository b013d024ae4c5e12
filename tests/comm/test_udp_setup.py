"""Setting up datagrams: what goes wrong is said so that it can be mended."""

from __future__ import annotations

import socket

import pytest

from hvd_gradflow.comm import udp
from hvd_gradflow.config import Config
from hvd_gradflow.errors import UnsupportedError


def alone(config):
    """Set up the only rank; what it tells comes back to it."""
    return udp.connect(0, [[0]], "here", config, lambda value, what: [value])


def test_a_port_that_is_taken_names_the_variable():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        words = (
            rf"GRADFLOW_UDP_PORTS='{port}' has no free port; each rank takes one for each path and reducer"
        )
        with pytest.raises(UnsupportedError, match=words):
            alone(Config(transport="udp", udp_ports=str(port), udp_interfaces="lo"))


def test_an_interface_that_is_not_there_is_told():
    with pytest.raises(UnsupportedError, match="rank 0: GRADFLOW_UDP_INTERFACES: 'eth99' is not one of"):
        alone(Config(transport="udp", udp_interfaces="eth99"))


def test_ranks_with_other_numbers_of_paths_are_told(monkeypatch):
    said = []
    monkeypatch.setattr(udp.events, "warn", lambda text, *values: said.append(text % values))
    udp._tell_of_paths(0, [1, 2, 1])
    udp._tell_of_paths(1, [1, 2, 1])
    udp._tell_of_paths(0, [2, 2])
    assert len(said) == 1 and "ranks [1] have more paths than the others, who have 1" in said[0]
