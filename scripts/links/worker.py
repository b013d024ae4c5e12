"""A rank of bench_links.py: moves payloads from rank 0 to rank 1 by each carrier in turns, and times them.

Carriers: datagrams (`udp`), MPI's messages (`mpi`), Gloo's (`gloo`). Started on two nodes with the name of a
folder in which the ranks and the bench leave each other words.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hvd_gradflow import config
from hvd_gradflow.comm import _transports as native
from hvd_gradflow.comm import udp
from hvd_gradflow.reduce import _engine
from hvd_gradflow.reduce.agreement import exchange

PIECE = 64 << 10  # bytes of one message
AHEAD = 24  # messages under way


class ByTransport:
    """Messages of a transport, a window of them under way."""

    def __init__(self, rank, transport):
        self.rank, self.transport = rank, transport
        self.room = [np.zeros(PIECE, np.uint8) for _ in range(AHEAD)]
        if rank == 1:
            for buffer in self.room:
                transport.post(0, native.SCATTER, buffer)

    def move(self, payload, seconds):
        """Move pieces of the payload until it or the time is over; returns bytes (at the receiver)."""
        end = time.monotonic() + seconds
        return self._send(payload, end) if self.rank == 0 else self._receive()

    def _send(self, payload, end):
        t, under_way = self.transport, []
        pieces = list(range(0, payload.size, PIECE))
        for i, at in enumerate(pieces):
            last = i == len(pieces) - 1 or time.monotonic() > end
            ticket = t.send(1, native.SCATTER, payload[at : at + PIECE])
            under_way.append(ticket)
            while len(under_way) >= AHEAD or (last and under_way):
                under_way = [u for u in under_way if not t.done(u)]
                self._wait()
            if last:
                t.send(1, native.CONTROL, np.array([i + 1], np.uint32).view(np.uint8))
                break
        while t.take_control() is None:  # that all of it has come
            self._wait()
        self._linger(0.1)
        return 0

    def _receive(self):
        t, came, total, size = self.transport, 0, None, 0
        while total is None or came < total:
            while (message := t.take(0, native.SCATTER)) is not None:
                t.post(0, native.SCATTER, self.room[came % AHEAD])
                came += 1
                size += message.shape[0]
            if total is None and (word := t.take_control()) is not None:
                total = int(np.frombuffer(word[1], np.uint32)[0])
            self._wait()
        self.moved = time.monotonic()
        t.send(0, native.CONTROL, np.zeros(1, np.uint8))
        self._linger(0.3)
        return size

    def _linger(self, seconds):
        """Go on for a while: the last word may have to be repeated, or acknowledged once more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._wait()

    def _wait(self):
        if not self.transport.progress():
            time.sleep(2e-5)


class ByGloo:
    """torch.distributed over Gloo, which sends by TCP."""

    def __init__(self, rank, folder):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank = torch, dist, rank
        dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2)

    def move(self, payload, seconds):
        end, size, at = time.monotonic() + seconds, 0, 0
        more = self.torch.ones(1)
        while more.item():
            piece = self.torch.from_numpy(payload[at : at + PIECE])
            at += PIECE
            if self.rank == 0:
                more[0] = float(at < payload.size and time.monotonic() < end)
                self.dist.send(piece, 1)
                self.dist.send(more, 1)
            else:
                self.dist.recv(piece, 0)
                self.dist.recv(more, 0)
                size += piece.numel()
        return size


def main(folder):
    """Work through the plan that the bench leaves in the folder, a line at a time."""
    comm = MPI.COMM_WORLD
    folder = Path(folder)
    own = comm.Dup()
    connected = udp.connect(
        comm.rank,
        [[0], [1]],
        MPI.Get_processor_name(),
        config.load(),
        lambda value, what: exchange(comm, value, 60, what),
    )
    carriers = {
        "udp": ByTransport(comm.rank, connected),
        "mpi": ByTransport(comm.rank, native.Borrowed(_engine.mpi_transport(MPI._addressof(own)))),
        "gloo": ByGloo(comm.rank, folder),
    }
    payload = np.random.default_rng(comm.rank).integers(0, 256, 16 << 20, dtype=np.uint8)
    number = 0
    while True:
        (folder / f"ready{comm.rank}.{number}").touch()
        plan = folder / f"plan.{number}"
        while not plan.exists():
            time.sleep(0.01)
        order = json.loads(plan.read_text())
        if not order:
            return
        carrier = carriers[order["carrier"]]
        began = time.monotonic()  # one machine, one clock: the sender's start is told by a file
        if comm.rank == 0:
            (folder / f"began.{number}.tmp").write_text(repr(began))
            (folder / f"began.{number}.tmp").rename(folder / f"began.{number}")
        moved = carrier.move(payload[: order["bytes"]], order["seconds"])
        if comm.rank == 1:
            ended = getattr(carrier, "moved", None) or time.monotonic()
            seconds = ended - float((folder / f"began.{number}").read_text())
            (folder / f"found.{number}.tmp").write_text(json.dumps({"bytes": moved, "seconds": seconds}))
            (folder / f"found.{number}.tmp").rename(folder / f"found.{number}")
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
