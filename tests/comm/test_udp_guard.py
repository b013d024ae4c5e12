"""Parity: enough of it for the end of what is sent, and for what matters of that which may be given up."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hvd_gradflow.comm import _transports as native
from hvd_gradflow.comm.ldpc import native as ldpc
from tests.comm import transports
from tests.comm.relay import Relay

SCATTER = native.SCATTER


def failures(k, m, n1, loss, trials=4000):
    """How often not all of k can be had, with the codes of the transport (seed 0 is 1)."""
    if n1 == 0:  # any k of them
        rng = np.random.default_rng(3)
        return float(np.mean(rng.binomial(k + m, loss, 20 * trials) > m))
    return ldpc().Code(k, m, n1, 1).trials(round(loss * 2**32), trials, 7)["failed"] / trials


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 500])
def test_parity_of_a_tail_suffices(k, loss):
    m, n1 = native.parity_shape(k, k, loss)
    assert m * (1 - loss) <= k * loss + 3 * (k * loss) ** 0.5 + (2 if n1 == 0 else 5 + 0.01 * k)
    assert failures(k, m, n1, loss) < 0.01


def test_as_many_equations_as_places_would_be_one_and_the_same():
    """Why N1 follows from m: with N1 = m = 7 whatever loses two is lost."""
    assert failures(20, 7, 7, 0.1) > 0.5
    assert failures(20, 7, 3, 0.1) < 0.12
    assert failures(20, 7, 0, 0.1) < 0.01


@pytest.mark.parametrize(
    ("k", "m", "n1"), [(20, 6, 0), (110, 16, 0), (241, 16, 7), (150, 18, 7), (150, 25, 7), (200, 32, 7)]
)
def test_odds_are_those_of_the_code(k, m, n1):
    odds = native.guard_odds(k, m, 0.1)
    assert odds[k] == pytest.approx(1 - failures(k, m, n1, 0.1), abs=0.05)
    assert odds[0] == pytest.approx(1)
    assert np.all(np.diff(odds) < 1e-12)


def product(a, b):
    """In GF(2^8) with x^8 + x^4 + x^3 + x^2 + 1, digit by digit."""
    total = 0
    while b:
        total ^= a * (b & 1)
        a, b = a << 1 ^ (0x11D if a & 0x80 else 0), b >> 1
    return total


def inverse(a):
    return next(b for b in range(1, 256) if product(a, b) == 1)


@pytest.mark.parametrize("width", [1, 31, 100])
def test_short_blocks_have_the_parity_of_a_cauchy_matrix(width):
    source = np.random.default_rng(width).integers(0, 256, (5, width), dtype=np.uint8)
    parity = np.zeros((3, width), np.uint8)
    native.cauchy_parity(source, parity)
    for i in range(3):
        factors = [inverse(i ^ (3 + j)) for j in range(5)]
        for x in range(width):
            column = [product(f, int(v)) for f, v in zip(factors, source[:, x], strict=True)]
            assert parity[i, x] == column[0] ^ column[1] ^ column[2] ^ column[3] ^ column[4]


def test_any_symbols_give_the_others():
    rng = np.random.default_rng(0)
    for k, m in ((1, 1), (1, 4), (4, 3), (40, 16), (240, 16)):
        source = rng.integers(0, 256, (k, 70), dtype=np.uint8)
        parity = np.zeros((m, 70), np.uint8)
        native.cauchy_parity(source, parity)
        for _ in range(100):
            count = int(rng.integers(0, min(k, m) + 1))
            for lost in ({*rng.permutation(k)[:count].tolist()}, set(range(min(k, m)))):
                which = rng.permutation(m)[: max(len(lost), 1)]
                damaged = source.copy()
                damaged[list(lost)] = 0xAA
                assert native.cauchy_restore(damaged, lost, parity[which], which, m)
                assert np.array_equal(damaged, source)
    assert not native.cauchy_restore(source.copy(), {0, 1}, parity[:1], [0], m)


@pytest.mark.parametrize("seed", range(5))
def test_the_plan_takes_the_heaviest_by_byte_and_as_many_as_pay(seed):
    rng = np.random.default_rng(seed)
    weights, sizes = rng.lognormal(0, 2, 200), rng.integers(200, 1300, 200)
    parity, loss, packet = 8, 0.1, 1300
    guarded, gain = native.guard_plan(weights, sizes, packet, parity, loss)
    order = np.argsort(-weights / sizes, kind="stable")
    count = sum(guarded)
    assert set(np.flatnonzero(guarded)) == set(order[:count])
    odds = native.guard_odds(448, parity, loss)
    packets = -(-np.cumsum(sizes[order]) // packet)
    gains = np.cumsum(weights[order]) * loss * np.array(odds)[packets]
    assert count == 1 + np.argmax(gains)
    assert gain == pytest.approx(gains.max())
    assert not any(native.guard_plan(weights, sizes, packet, 0, loss)[0])
    assert not any(native.guard_plan(weights, sizes, packet, parity, 0.0)[0])


def one(transport, patience):
    """Take the next message of rank 0: whether it came."""
    found = []

    def there():
        message = transport.take(0, SCATTER, patience)
        if message is not None:
            found.append(message is not native.MISSING)
        return bool(found)

    transports.until(transport, there, "a message, or word that it is missing")
    return found[0]


def test_what_must_arrive_does_not_overtake_what_may_be_given_up():
    """On one channel: the receiver would take what waits for its batch for late."""
    size, count = 1 << 20, 60
    payload, part = transports.bytes_of(1, size), transports.bytes_of(2, 100)

    def program(transport, rank, world_size):
        if rank == 1:
            for _ in range(count + 1):
                transport.post(0, SCATTER, np.zeros(size, np.uint8))
            transports.barrier(transport, rank, world_size)
            assert all([one(transport, 0.02) for _ in range(count + 1)])
        else:
            transports.barrier(transport, rank, world_size)
            tickets = [transport.send(1, SCATTER, part, 1.0)]
            tickets += [transport.send(1, SCATTER, payload) for _ in range(count)]
            transports.settled(transport, tickets)

    transports.together(transports.udp_world(2, deadline=0.5), program)


def test_a_batch_waits_for_company_however_long_none_came():
    def program(transport, rank, world_size):
        if rank == 1:
            transport.post(0, SCATTER, np.zeros(100, np.uint8))
            assert one(transport, 1.0)
            return
        transport.progress()
        time.sleep(0.2)
        ticket = transport.send(1, SCATTER, np.zeros(100, np.uint8), 1.0)
        transport.progress()
        assert transport.counters()["data"] == 0
        transports.settled(transport, [ticket])
        assert transport.counters()["data"] == 1

    transports.together(transports.udp_world(2, deadline=0.15), program)


class TestDelivery:
    """A deadline below a round trip: nothing that was lost can be sent again in time."""

    COUNT, WARM, SIZE, DEADLINE = 1200, 600, 1200, 0.15

    def delivered(self, parity):
        """Share of the weight that came in time, share of the messages, and what was sent for it."""
        relays = []

        def through(path, rank, port):
            relays.append(Relay(port, seed=rank + 5, loss=0.1 * rank, delay=0.1))
            return relays[-1].port

        world = transports.udp_world(2, relays=through, parity=parity, deadline=self.DEADLINE)
        total = self.COUNT + self.WARM
        weights = np.random.default_rng(3).lognormal(0, 2, total)
        came, before = np.zeros(total, bool), {}

        def program(transport, rank, size):
            if rank == 1:
                for _ in range(total):
                    transport.post(0, SCATTER, np.zeros(self.SIZE, np.uint8))
                for i in range(total):
                    came[i] = one(transport, self.DEADLINE)
                    if i in (self.WARM - 1, total - 1):
                        transport.send(0, native.CONTROL, np.zeros(1, np.uint8))
            else:
                payload = transports.bytes_of(1, self.SIZE)
                for part in (range(self.WARM), range(self.WARM, total)):
                    tickets = [transport.send(1, SCATTER, payload, weights[i]) for i in part]
                    transports.controls(transport, [1], 1)
                    transports.settled(transport, tickets)
                    before.setdefault("warm", transport.counters())

        try:
            transports.together(world, program)
            after = world[0].counters()
        finally:
            for relay in relays:
                relay.close()
        sent = {k: after[k] - before["warm"][k] for k in after}
        came, weights = came[self.WARM :], weights[self.WARM :]
        return weights[came].sum() / weights.sum(), came.mean(), sent

    def undisturbed(self, parity, most):
        """The best of three tries at most: where the host stands still, more is late than the link loses."""
        found = []
        while len(found) < 3 and (not found or max(found, key=lambda f: f[1])[1] < most):
            found.append(self.delivered(parity))
        return max(found, key=lambda f: f[1])

    def test_what_matters_arrives(self):
        weight, messages, sent = self.undisturbed(parity=True, most=0.915)
        assert sent["guard"] <= 0.05 * self.COUNT * 1.1
        assert sent["guard"] > 10
        assert 0.85 < messages < 0.97
        assert weight > 0.96

    def test_without_parity_as_much_is_late_as_is_lost(self):
        weight, messages, sent = self.undisturbed(parity=False, most=0.89)
        assert sent["parity"] == 0
        assert 0.85 < messages < 0.94
        assert weight < 0.955
