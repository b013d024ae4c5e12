"""What rank 0 sends to rank 1 in a turn of the bench of links, by a transport: a stream of messages."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from hvd_gradflow.comm import _transports as native

PIECE = 32 << 10  # bytes of one message
LOG_SECONDS = 0.02  # between two entries of what had come when


class ByTransport:
    """Messages of a transport, a window of `ahead` of them under way, of which the oldest must be there."""

    def __init__(self, rank, transport, ahead):
        self.rank, self.transport, self.ahead = rank, transport, ahead
        self.payload = np.random.default_rng(0).integers(0, 256, 16 << 20, dtype=np.uint8)
        self.room = [np.zeros(PIECE, np.uint8) for _ in range(ahead)]
        if rank == 1:
            for buffer in self.room:
                transport.post(0, native.SCATTER, buffer)

    def move(self, order, began):
        """Send or receive `bytes`, or what goes in `seconds`; returns what came (at the receiver).

        Returns
        -------
        dict
            `bytes` that came in `seconds`, and `log`: bytes that had come at times of the monotonic clock.
        """
        end = began + order["seconds"]
        pieces = -(-order["bytes"] // PIECE)
        return self._send(pieces, end) if self.rank == 0 else self._receive(began, end)

    def _send(self, pieces, end):
        t, under_way, round_ = self.transport, deque(), self.payload.size
        for i in range(pieces):
            at = i * PIECE % round_
            last = i == pieces - 1 or time.monotonic() > end
            under_way.append(t.send(1, native.SCATTER, self.payload[at : at + PIECE]))
            while len(under_way) >= self.ahead or (last and under_way):
                if t.done(under_way[0]):
                    under_way.popleft()
                else:
                    self._wait()
            if last:
                t.send(1, native.CONTROL, np.array([i + 1], np.uint32).view(np.uint8))
                break
        while t.take_control() is None:  # that all of it has come
            self._wait()
        self._linger(0.1)

    def _receive(self, began, end):
        t, came, total, in_time, moved = self.transport, 0, None, 0, began
        log = [(began, 0)]
        while total is None or came < total:
            while t.take(0, native.SCATTER) is not None:
                t.post(0, native.SCATTER, self.room[came % self.ahead])
                came += 1
                now = time.monotonic()
                if now <= end:
                    in_time, moved = came, now
                if now > log[-1][0] + LOG_SECONDS:
                    log.append((now, came * PIECE))
            if total is None and (word := t.take_control()) is not None:
                total = int(np.frombuffer(word[1], np.uint32)[0])
            self._wait()
        t.send(0, native.CONTROL, np.zeros(1, np.uint8))
        self._linger(0.3)
        # What comes after the end of a turn is not counted: on a bad link that takes long.
        seconds = moved - began if in_time == total else end - began
        return {"bytes": in_time * PIECE, "seconds": seconds, "log": log}

    def _linger(self, seconds):
        """Go on for a while: the last word may have to be repeated, or acknowledged once more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._wait()

    def _wait(self):
        if not self.transport.progress():
            time.sleep(2e-5)
