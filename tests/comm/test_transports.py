"""The conformance suite on the transports that fit into one process (by MPI: tests/mpi)."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.comm import transports
from tests.comm.relay import Relay
from tests.comm.transports import CONTROL, SCATTER, bytes_of

WORLDS = {"local": transports.local_world, "udp": transports.udp_world}


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("program", transports.PROGRAMS, ids=lambda p: p.__name__)
def test_conformance(kind, size, program):
    world = WORLDS[kind](size)
    transports.together(world, program)
    for transport in world:
        transport.close()


BAD = {
    "loss": {"loss": 0.1, "delay": 0.002},
    "mess": {"loss": 0.05, "delay": 0.001, "jitter": 0.004, "twice": 0.05, "flipped": 0.03},
    "terrible": {"loss": 0.4, "delay": 0.001},
}


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        pytest.param(kind, program, id=f"{kind}-{program.__name__}")
        for kind in BAD
        # Where nearly half is lost, what also has no room when it comes takes long.
        for program in (transports.PROGRAMS[:2] if kind == "terrible" else transports.PROGRAMS)
    ],
)
def test_datagrams_over_bad_links(kind, program):
    relays = []

    def through(path, rank, port):
        relays.append(Relay(port, seed=rank, **BAD[kind]))
        return relays[-1].port

    world = transports.udp_world(2, relays=through)
    try:
        transports.together(world, program)
        counts = [t.counters() for t in world]
        assert sum(c["lost"] + c["recovered"] for c in counts) > 0
        if kind == "loss":  # what parity made, or came late, was not overtaken
            assert [t.paths(1 - rank)[0]["reorder"] for rank, t in enumerate(world)] == [3, 3]
        if kind == "mess":
            assert sum(c["forged"] for c in counts) > 0
            assert sum(c["replayed"] for c in counts) > 0
    finally:
        for transport in world:
            transport.close()
        for relay in relays:
            relay.close()


def test_small_packets():
    world = transports.udp_world(2, mtu=576)
    transports.together(world, transports.into_posted_buffers)


def test_acknowledgements_do_not_hold_up_what_little_is_sent():
    """Who receives much and sends little may at any time: its acknowledgements take no time of its own."""
    relays, took = [], []

    def through(path, rank, port):
        relays.append(Relay(port, delay=0.05))
        return relays[-1].port

    def program(transport, rank, size):
        rounds = 3
        for turn in range(rounds):
            if rank == 0:
                tickets = [transport.send(1, SCATTER, bytes_of(turn, 8_000_000))]
                transports.controls(transport, [1], 1)
            else:
                transport.post(0, SCATTER, np.zeros(8_000_000, np.uint8))
                transports.taken(transport, 0, SCATTER)
                begin = time.monotonic()
                tickets = [transport.send(0, CONTROL, np.zeros(24, np.uint8))]
            transports.settled(transport, tickets)
            if rank == 1:
                took.append(time.monotonic() - begin)

    world = transports.udp_world(2, relays=through)
    try:
        transports.together(world, program)
        assert max(took) < 0.6, took
    finally:
        for relay in relays:
            relay.close()


def test_several_paths_share_the_load():
    world = transports.udp_world(2, paths=3)
    transports.together(world, transports.into_posted_buffers)
    assert len(world[0].paths(1)) == 3
    assert sum(path["rtt"] > 0 for path in world[0].paths(1)) >= 2


def test_a_path_that_dies_is_dropped_and_comes_back():
    relays = {}

    def through(path, rank, port):
        relays[path, rank] = Relay(port, delay=0.001)
        return relays[path, rank].port

    def cut(*paths):
        for path, rank in relays:
            relays[path, rank].cut = path in paths

    world = transports.udp_world(2, paths=2, relays=through)
    try:
        transports.together(world, transports.into_posted_buffers)
        cut(0)
        transports.together(world, transports.into_posted_buffers)
        cut(1)  # the other one: the first must have come back
        transports.together(world, transports.into_posted_buffers)
        assert all(t.counters()["dead_paths"] >= 1 for t in world)
    finally:
        for relay in relays.values():
            relay.close()
