"""Datagrams that should not be: none is believed, none costs memory, and what is meant still arrives."""

from __future__ import annotations

import os
import random
import resource
import struct
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow.comm import _transports as native
from hvd_gradflow.comm import keys
from tests.comm.relay import Relay
from tests.comm.transports import CONTROL, SCATTER, bytes_of, until

SESSION = 0xABCD1234
HEADER = struct.Struct("<BBHIQ")  # docs/udp.md: magic, version and path, source, session, counter
KEYS = {(0, 1): bytes(range(32)), (1, 0): bytes(range(100, 132))}
SECOND = bytes(range(50, 82))  # of both, from the datagram 2^28 on


class Pair:
    """Two ranks; what rank 0 sends passes a relay that keeps a copy."""

    def __init__(self, keyring=KEYS, session=SESSION, keep=4000):
        assert native.load_crypto() == ""
        self.ranks = [native.NativeUdp(rank, session, 1500, True) for rank in (0, 1)]
        ports = [t.add_path("127.0.0.1", 0) for t in self.ranks]
        self.relay = Relay(ports[1])
        self.relay.keep = keep
        self.back = Relay(ports[0])
        self.ranks[0].add_peer(
            1, ["127.0.0.1"], [self.relay.port], [keyring[0, 1], SECOND], [keyring[1, 0], SECOND]
        )
        self.ranks[1].add_peer(
            0, ["127.0.0.1"], [self.back.port], [keyring[1, 0], SECOND], [keyring[0, 1], SECOND]
        )

    def progress(self, seconds=0.0):
        end = time.monotonic() + seconds
        while True:
            moved = [t.progress() for t in self.ranks]
            if time.monotonic() >= end and not any(moved):
                return
            if not any(moved):
                time.sleep(1e-4)

    def message(self, seed=1, size=20_000):
        """One message from 0 to 1; what arrived."""
        self.ranks[1].post(0, SCATTER, np.zeros(size, np.uint8))
        ticket = self.ranks[0].send(1, SCATTER, bytes_of(seed, size))
        came = []

        def there():
            self.ranks[1].progress()
            message = self.ranks[1].take(0, SCATTER)
            if message is not None:
                came.append(np.array(message))
            return came and self.ranks[0].done(ticket)

        until(self.ranks[0], there, "a message")
        return came[0]

    def works(self, seed=1):
        return np.array_equal(self.message(seed), bytes_of(seed, 20_000))

    def close(self):
        for t in self.ranks:
            t.close()
        self.relay.close()
        self.back.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def nonce(header):
    _, version_path, _, _, counter = HEADER.unpack(header)
    return struct.pack("<IQ", version_path & 15, counter)


def sealed(body, key, *, counter, source=0, session=SESSION, path=0, magic=0x47, version=1):
    header = HEADER.pack(magic, version << 4 | path, source, session, counter)
    return header + AESGCM(key).encrypt(nonce(header), bytes(body), header)


def test_datagrams_are_as_documented(pair):
    """Another implementation of AES-GCM opens them, and finds the message."""
    assert pair.works()
    found = bytearray(20_000)
    counters = set()
    for datagram in pair.relay.seen:
        header, rest = datagram[:16], datagram[16:]
        magic, version_path, source, session, counter = HEADER.unpack(header)
        assert (magic, version_path, source, session) == (0x47, 0x10, 0, SESSION)
        counters.add(counter)
        body = AESGCM(KEYS[0, 1]).decrypt(nonce(header), rest, header)
        if body[0] != 1:
            continue
        at = 12
        while at + 16 <= len(body) and body[at]:
            channel, _, count, _message, segment, total = struct.unpack_from("<BBHIII", body, at)
            assert (channel, total) == (SCATTER, 20_000)
            found[segment * 1412 : segment * 1412 + count] = body[at + 16 : at + 16 + count]
            at += 16 + count
    assert len(counters) == len(pair.relay.seen)  # no nonce twice
    assert bytes(found) == bytes_of(1, 20_000).tobytes()


def hostile(pair, other):
    """Kinds of datagrams that must be dropped, by name; each makes one from what was seen on the wire."""
    draw = random.Random(5)
    seen = pair.relay.seen

    def some():
        return draw.choice(seen)

    def flipped():
        d = bytearray(some())
        d[draw.randrange(len(d))] ^= 1 << draw.randrange(8)
        return bytes(d)

    def replaced(**fields):
        d = some()
        names = ["magic", "version_path", "source", "session", "counter"]
        values = dict(zip(names, HEADER.unpack(d[:16])))
        return HEADER.pack(*{**values, **fields}.values()) + d[16:]

    return {
        "random": lambda: draw.randbytes(draw.randrange(1, 1500)),
        "nothing": lambda: b"",
        "random behind a header": lambda: some()[:16] + draw.randbytes(draw.randrange(0, 1460)),
        "truncated": lambda: (lambda d: d[: draw.randrange(len(d))])(some()),
        "longer": lambda: some() + draw.randbytes(draw.randrange(1, 3000)),
        "flipped": flipped,
        "replayed": some,
        "other generation": lambda: draw.choice(other.relay.seen),
        "other counter": lambda: replaced(counter=draw.getrandbits(64)),
        "other source": lambda: replaced(source=draw.randrange(65536)),
        "other path": lambda: replaced(version_path=0x10 | draw.randrange(1, 16)),
        "other version": lambda: replaced(version_path=0x20),
        "own key": lambda: sealed(b"\1" + draw.randbytes(100), KEYS[1, 0], counter=10**6, source=0),
        "reflected": lambda: sealed(b"\1" + draw.randbytes(100), KEYS[1, 0], counter=10**6, source=1),
    }


def test_nothing_hostile_is_believed(pair):
    other = Pair({k: os.urandom(32) for k in KEYS})  # of the same session number, even
    try:
        assert pair.works() and other.works()
        kinds = hostile(pair, other)
        guard = np.full(20_000, 42, np.uint8)
        pair.ranks[1].post(0, SCATTER, guard)
        before, answered = pair.ranks[1].counters(), pair.ranks[1].counters()["datagrams"]
        memory = None
        for turn in range(40):
            for make in kinds.values():
                for _ in range(10):
                    datagram = make()
                    if len(datagram) > 0:
                        pair.relay.send(datagram)
            pair.progress()
            if turn == 10:
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        pair.progress(0.05)
        after = pair.ranks[1].counters()
        for kind in ("forged", "replayed", "malformed"):
            assert after[kind] > before[kind], kind
        dropped = sum(after[k] - before[k] for k in ("forged", "replayed", "malformed"))
        assert dropped > 40 * 10 * (len(kinds) - 1) * 0.9  # the rest the loopback may drop
        assert after["datagrams"] == answered, "an answer to what was not authenticated"
        assert (guard == 42).all()
        assert pair.ranks[1].take(0, SCATTER) is None and pair.ranks[1].take_control() is None
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 4096, "memory grew"
        ticket = pair.ranks[0].send(1, SCATTER, bytes_of(9, 20_000))
        until(pair.ranks[0], lambda: (pair.ranks[1].progress(), pair.ranks[0].done(ticket))[1], "a message")
        assert np.array_equal(guard, bytes_of(9, 20_000))
    finally:
        other.close()


FRAME = struct.Struct("<BBHIII")


def data(number, oldest, frames, keep=0):
    return struct.pack("<BBHII", 1, keep, 0, number, oldest) + frames


def frame(channel, message, segment, total, payload, count=None):
    return FRAME.pack(channel, 0, len(payload) if count is None else count, message, segment, total) + payload


IMPOSSIBLE = {
    "unknown kind": b"\x09" + bytes(20),
    "short data": b"\1" + bytes(9),
    "unknown channel": data(0, 0, frame(9, 0, 0, 10, bytes(10))),
    "more than there is": data(0, 0, frame(SCATTER, 0, 0, 1000, bytes(10), count=1000)),
    "longer than its room": data(0, 0, frame(SCATTER, 0, 0, 2**31, bytes(1412))),
    "beyond its end": data(0, 0, frame(SCATTER, 0, 5, 100, bytes(100))),
    "not a whole segment": data(0, 0, frame(SCATTER, 0, 0, 5000, bytes(100))),
    "huge control message": data(0, 0, frame(CONTROL, 0, 0, 2**32 - 1, bytes(1412))),
    "numbers far apart": data(2**31, 0, b""),
    "acknowledgement of another length": struct.pack("<BBHIIIII", 3, 0, 500, 0, 0, 0, 0, 0),
    "acknowledgement of no path": struct.pack("<BBHIIIII", 3, 7, 0, 0, 0, 0, 0, 0),
    "parity of nothing": struct.pack("<BBHIHH", 2, 7, 0, 0, 0, 5) + bytes(50),
    "parity of too much": struct.pack("<BBHIHH", 2, 7, 0, 0, 60_000, 5) + bytes(50),
    "parity symbol out of range": struct.pack("<BBHIHH", 2, 7, 9, 0, 10, 5) + bytes(50),
    "short ping": b"\4\0",
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_peer_with_the_key_that_says_what_cannot_be_ends_it(pair, kind):
    """A sentence, and not a byte written where it does not belong."""
    buffer = np.full(5000 + 64, 42, np.uint8)
    pair.ranks[1].post(0, SCATTER, buffer[32:-32])
    body = IMPOSSIBLE[kind]
    pair.relay.send(sealed(body + bytes(max(0, 8 - len(body))), KEYS[0, 1], counter=5))
    with pytest.raises(ConnectionError, match="UDP: "):
        pair.progress(2.0)
    assert (buffer == 42).all()


@given(
    st.lists(
        st.one_of(
            st.binary(min_size=8, max_size=200),
            st.builds(
                data,
                st.integers(0, 9000),
                st.integers(0, 9000),
                st.builds(
                    frame,
                    st.integers(0, 4),
                    st.integers(0, 5),
                    st.integers(0, 3),
                    st.sampled_from([0, 1, 100, 1412, 3000, 5000, 2**32 - 1]),
                    st.binary(max_size=150),
                ),
                st.integers(0, 1),
            ),
            st.builds(
                lambda *v: struct.pack("<BBHIHH", 2, 7, *v[:4]) + v[4],
                st.integers(0, 20),
                st.integers(0, 50),
                st.integers(1, 20),
                st.integers(1, 20),
                st.binary(min_size=1, max_size=60),
            ),
            st.builds(
                lambda b, base, largest, bits: (
                    struct.pack("<BBHIIIII", 3, 0, len(bits), base, largest, b, 0, 0) + bits
                ),
                st.integers(0, 2**32 - 1),
                st.integers(0, 2**32 - 1),
                st.integers(0, 2**32 - 1),
                st.binary(max_size=60),
            ),
        ),
        max_size=12,
    )
)
@settings(max_examples=150, deadline=None)
def test_authenticated_nonsense_stays_within_bounds(bodies):
    pair = Pair(keep=0)
    try:
        buffer = np.full(5000 + 64, 42, np.uint8)
        pair.ranks[1].post(0, SCATTER, buffer[32:-32])
        for i, body in enumerate(bodies):
            pair.relay.send(sealed(body, KEYS[0, 1], counter=i))
        try:
            pair.progress(0.003)
        except ConnectionError:
            pass
        assert (buffer[:32] == 42).all() and (buffer[-32:] == 42).all()
    finally:
        pair.close()


def test_without_libcrypto_it_refuses(monkeypatch):
    monkeypatch.setattr(native, "load_crypto", lambda path="": "libcrypto.so.3: not found")
    assert "install libssl3" in (keys.obstacle() or "")


def test_the_key_follows_from_the_counter(pair):
    """Each is for 2^28 datagrams; beyond the last one there is none."""
    pong = struct.pack("<BBHId", 5, 0, 0, 0, 1.0)
    for counter, key, what in [
        (2**28 - 1, KEYS[0, 1], None),
        (2**28, KEYS[0, 1], "forged"),
        (2**28, SECOND, None),
        (2**28 - 2, KEYS[0, 1], None),  # overtaken, but not by much
        (2**29, SECOND, "forged"),
    ]:
        before = pair.ranks[1].counters()
        pair.relay.send(sealed(pong, key, counter=counter))
        pair.progress(0.05)
        after = pair.ranks[1].counters()
        changed = [k for k in ("forged", "replayed", "malformed") if after[k] != before[k]]
        assert changed == ([what] if what else []), counter


def test_keys_differ_by_direction_generation_and_number():
    secret = keys.new_secret()
    made = [
        key
        for session in (1, 2)
        for a in range(3)
        for b in range(3)
        if a != b
        for key in keys.direction_keys(secret, session, a, b)
    ]
    assert len(set(made)) == len(made) == 12 * keys.KEYS and all(len(k) == 32 for k in made)
    assert keys.direction_keys(bytes(32), 1, 0, 1)[0] not in made
