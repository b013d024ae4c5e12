"""A bad link: a socket that passes datagrams on, or does not."""

from __future__ import annotations

import heapq
import itertools
import random
import socket
import threading
import time

UDP_GRO = 104


class Relay:
    """Passes what comes to its port on to another port of this machine, from a thread.

    Parameters
    ----------
    port : int
        Where to.
    loss, twice, flipped : float
        Shares of datagrams that are dropped, sent twice, or changed by a bit.
    delay, jitter : float
        Seconds that each takes, at least, and at random beyond that.
    """

    def __init__(self, port, *, loss=0.0, delay=0.0, jitter=0.0, twice=0.0, flipped=0.0, seed=0):
        self.target = ("127.0.0.1", port)
        self.loss, self.delay, self.jitter = loss, delay, jitter
        self.twice, self.flipped = twice, flipped
        self.cut = False
        self.seen: list[bytes] = []
        self.keep = 0
        self._random = random.Random(seed)
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._in.bind(("127.0.0.1", 0))
        self._in.settimeout(0.0005)
        self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.port = self._in.getsockname()[1]
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, datagram):
        """Put a datagram of one's own on the link."""
        self._out.sendto(datagram, self.target)

    def close(self):
        self._stop = True
        self._thread.join(5)
        self._in.close()
        self._out.close()

    def _run(self):
        queue, count, draw = [], itertools.count(), self._random.random
        while not self._stop:
            try:
                datagram = self._in.recv(65536)
            except TimeoutError:
                datagram = None
            now = time.monotonic()
            if datagram is not None:
                if len(self.seen) < self.keep:
                    self.seen.append(datagram)
                if not self.cut and draw() >= self.loss:
                    if draw() < self.flipped:
                        at = self._random.randrange(len(datagram))
                        flipped = bytes([datagram[at] ^ 1 << self._random.randrange(8)])
                        datagram = datagram[:at] + flipped + datagram[at + 1 :]
                    for _ in range(2 if draw() < self.twice else 1):
                        due = now + self.delay + self.jitter * draw()
                        heapq.heappush(queue, (due, next(count), datagram))
            while queue and queue[0][0] <= now:
                self._out.sendto(heapq.heappop(queue)[2], self.target)
