"""What every transport must do: programs that each rank runs, and ways to run them."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from hvd_gradflow.comm import _transports as native

CONTROL, SCATTER, GATHER = native.CONTROL, native.SCATTER, native.GATHER
PATIENCE = 60.0


def until(transport, condition, what):
    """Make progress until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if not transport.progress():
            time.sleep(2e-5)
        assert time.monotonic() < end, f"{what}: nothing after {PATIENCE:g} s"


def bytes_of(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def taken(transport, peer, channel):
    found = []

    def there():
        message = transport.take(peer, channel)
        if message is not None:
            found.append(np.array(message))
        return bool(found)

    until(transport, there, f"a message of rank {peer}")
    return found[0]


_early = {}  # control messages that came before somebody asked for them, by transport and sender


def controls(transport, peers, count):
    """The next `count` control messages of each of these peers."""
    came = _early.setdefault(id(transport), {})

    def there():
        while (message := transport.take_control()) is not None:
            came.setdefault(message[0], []).append(message[1])
        return all(len(came.get(peer, ())) >= count for peer in peers)

    until(transport, there, f"{count} control messages")
    found = {peer: came[peer][:count] for peer in peers}
    for peer in peers:
        del came[peer][:count]
    return found


def settled(transport, tickets):
    left = list(tickets)

    def gone():
        left[:] = [t for t in left if not transport.done(t)]
        return not left

    until(transport, gone, f"{len(tickets)} sends")


def barrier(transport, rank, size):
    """Nobody leaves before all have come: control messages of nothing."""
    others = [peer for peer in range(size) if peer != rank]
    tickets = [transport.send(peer, CONTROL, np.zeros(0, np.uint8)) for peer in others]
    controls(transport, others, 1)
    settled(transport, tickets)


def control_in_order(transport, rank, size):
    """Control messages of many lengths come whole, once, in order, from everybody."""
    lengths = [0, 1, 1411, 1412, 1413, 100_000, 7, 0, 50, 1_000_000, 3]
    others = [peer for peer in range(size) if peer != rank]
    tickets = [
        transport.send(peer, CONTROL, bytes_of(100 * rank + i, n))
        for i, n in enumerate(lengths)
        for peer in others
    ]
    for peer, messages in controls(transport, others, len(lengths)).items():
        assert messages == [bytes_of(100 * peer + i, n).tobytes() for i, n in enumerate(lengths)]
    settled(transport, tickets)


def into_posted_buffers(transport, rank, size):
    """Messages arrive in the buffers in their order, from nothing to all of the room; so do later rounds."""
    lengths = [5000, 0, 1, 1412, 2824, 300_000, 1413]
    others = [peer for peer in range(size) if peer != rank]
    for turn in range(3):
        tickets = []
        for peer in others:
            for n in lengths:
                transport.post(peer, SCATTER, np.full(max(n, 1) + 10, 7, np.uint8))
        for i, n in enumerate(lengths):
            tickets += [transport.send(p, SCATTER, bytes_of(1000 * turn + 10 * rank + i, n)) for p in others]
        for peer in others:
            for i, n in enumerate(lengths):
                expected = bytes_of(1000 * turn + 10 * peer + i, n)
                assert np.array_equal(taken(transport, peer, SCATTER), expected)
        settled(transport, tickets)


def sent_before_posted(transport, rank, size):
    """What comes before there is room for it is not lost."""
    others = [peer for peer in range(size) if peer != rank]
    tickets = [transport.send(p, GATHER, bytes_of(rank + i, 20_000)) for p in others for i in range(3)]
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        transport.progress()
    for peer in others:
        for i in range(3):
            transport.post(peer, GATHER, np.zeros(20_000, np.uint8))
            assert np.array_equal(taken(transport, peer, GATHER), bytes_of(peer + i, 20_000))
    settled(transport, tickets)


def room_for_one_at_a_time(transport, rank, size):
    """Of small messages that travel together each comes as soon as there is room for it alone."""
    peer, source = (rank + 1) % size, (rank - 1) % size
    tickets = [transport.send(peer, SCATTER, bytes_of(rank + i, 100)) for i in range(3)]
    for i in range(3):
        transport.post(source, SCATTER, np.zeros(100, np.uint8))
        assert np.array_equal(taken(transport, source, SCATTER), bytes_of(source + i, 100))
    settled(transport, tickets)


def channels_do_not_wait_for_each_other(transport, rank, size):
    """Without room on one channel the others go on."""
    others = [peer for peer in range(size) if peer != rank]
    held = [transport.send(p, SCATTER, bytes_of(rank, 30_000)) for p in others]
    tickets = [transport.send(p, GATHER, bytes_of(rank + 1, 30_000)) for p in others]
    tickets += [transport.send(p, CONTROL, bytes_of(rank, 40)) for p in others]
    for peer in others:
        transport.post(peer, GATHER, np.zeros(30_000, np.uint8))
        assert np.array_equal(taken(transport, peer, GATHER), bytes_of(peer + 1, 30_000))
    controls(transport, others, 1)
    for peer in others:
        transport.post(peer, SCATTER, np.zeros(30_000, np.uint8))
        assert np.array_equal(taken(transport, peer, SCATTER), bytes_of(peer, 30_000))
    settled(transport, held + tickets)


def memory_may_be_used_again(transport, rank, size):
    """Once a send is done its bytes may change; the receiver has what was there before."""
    peer = (rank + 1) % size
    source = (rank - 1) % size
    buffer = np.zeros(64_000, np.uint8)
    for turn in range(20):
        transport.post(source, SCATTER, np.zeros(64_000, np.uint8))
        buffer[:] = turn
        ticket = transport.send(peer, SCATTER, buffer)
        came = taken(transport, source, SCATTER)
        assert (came == turn).all()
        settled(transport, [ticket])
        buffer[:] = 255


PROGRAMS = [
    control_in_order,
    into_posted_buffers,
    sent_before_posted,
    room_for_one_at_a_time,
    channels_do_not_wait_for_each_other,
    memory_may_be_used_again,
]


def local_world(size):
    hub = native.Hub()
    return [native.NativeLocal(hub, rank, size) for rank in range(size)]


def udp_world(size, paths=1, relays=None, mtu=1500, session=77, parity=True, deadline=0):
    """Datagram transports on the loopback; `relays(path, rank, port)` may put itself in front of a port."""
    assert native.load_crypto() == ""
    world = [native.NativeUdp(rank, session, mtu, parity, deadline) for rank in range(size)]
    ports = [[t.add_path("127.0.0.1", 0) for _ in range(paths)] for t in world]
    if relays:
        ports = [[relays(path, rank, port) for path, port in enumerate(p)] for rank, p in enumerate(ports)]
    keys = {(a, b): os.urandom(32) for a in range(size) for b in range(size) if a != b}
    for a, transport in enumerate(world):
        for b in range(size):
            if a != b:
                transport.add_peer(b, ["127.0.0.1"] * paths, ports[b], [keys[a, b]], [keys[b, a]])
    return world


def together(world, program):
    """Run a program on all ranks of this process, each in a thread; the first error is raised."""
    errors, finished = [], []

    def run(rank):
        try:
            program(world[rank], rank, len(world))
            barrier(world[rank], rank, len(world))
        except BaseException as error:
            errors.append(error)
        finished.append(rank)
        # Who leaves says no more that it got the last word.
        while len(finished) < len(world):
            if not world[rank].progress():
                time.sleep(1e-4)

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(len(world))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE + 20)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
