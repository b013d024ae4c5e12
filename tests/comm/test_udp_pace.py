"""Pace beside others that fill a queue: what may be under way follows TCP's rule."""

from __future__ import annotations

from collections import deque

import pytest

from hvd_gradflow.comm import _transports as native

PACKET = 1500
LINK = 10e6  # bytes per second
WAY = 0.02  # seconds without a queue
PRODUCT = LINK * WAY


class Link:
    """A path by a bottleneck that others load, too; time goes on with `run`.

    Others add `standing` seconds to each round trip.
    """

    def __init__(self):
        self.pace = native.Pace(PACKET)
        self.now, self.next, self.free = 0.0, 0.0, 0.0
        self.under_way = deque()  # when it is acknowledged, what was remembered
        self.standing = 0.0

    def run(self, seconds, lost_each=0.0):
        """Go on; once in `lost_each` seconds a packet is lost."""
        end, losing = self.now + seconds, self.now + lost_each
        while self.now < end:
            self.now += 2e-4
            came = []
            while self.under_way and self.under_way[0][0] <= self.now:
                came.append(self.under_way.popleft()[1])
            if came:
                lost = lost_each and self.now >= losing
                if lost:
                    losing += lost_each
                self.pace.acknowledged(self.now, came, PACKET * len(self.under_way), 1 if lost else 0)
            while self.now >= self.next and PACKET * (len(self.under_way) + 1) <= self.pace.window:
                remembered = self.pace.sent(self.now, not self.under_way)
                self.free = max(self.free, self.now) + PACKET / LINK
                self.under_way.append((self.free + WAY + self.standing, remembered))
                self.next = max(self.next, self.now - 4e-3) + PACKET / self.pace.rate


@pytest.fixture
def beside():
    """A path on which others have begun to fill a queue of 20 ms, and ours takes its share."""
    link = Link()
    link.run(2.0)
    assert 1.5 * PRODUCT < link.pace.window < 3 * PRODUCT
    link.standing = 0.02
    link.run(4.0)
    return link


def test_the_share_grows_while_nothing_is_lost_and_ends_with_the_queue(beside):
    before = beside.pace.window
    beside.run(1.0)
    grown = beside.pace.window - before
    assert 10 * PACKET < grown < 1.0 / (WAY + 0.02) * 1.2 * PACKET  # one a round trip
    beside.standing = 0.0
    beside.run(12.0)
    settled = beside.pace.window
    beside.run(1.0)
    assert abs(beside.pace.window - settled) < 3 * PACKET
    assert settled < 3 * PRODUCT


def test_a_loss_cuts_the_share_but_losses_on_the_way_do_not_push_it_down(beside):
    beside.run(2.0)
    before = beside.pace.window
    beside.run(0.12, lost_each=0.1)
    beside.run(0.1)
    assert PRODUCT <= beside.pace.window < 0.9 * before
    beside.run(1.0, lost_each=0.01)
    assert beside.pace.window >= PRODUCT
