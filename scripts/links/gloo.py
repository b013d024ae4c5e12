"""A rank that moves payloads by Gloo: `gloo.py FOLDER RANK`, for the bench of links.

Each turn is a process of its own, with new connections, and ended when its time is over: Gloo cannot give up
what is under way, and on a bad link that takes minutes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch
import torch.distributed as dist

from links.words import Words

PIECE = 32 << 10  # bytes of one message
AHEAD = 32  # messages under way


def turn(words: Words, rank: int, order: dict) -> None:
    """Move pieces of a payload from rank 0 to rank 1; what came in time is said by rank 1."""
    where = f"file://{words.folder}/gloo.{words.number}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    dist.barrier()
    pieces = -(-order["bytes"] // PIECE)
    rng = np.random.default_rng(0)
    buffers = [torch.from_numpy(rng.integers(0, 256, PIECE, dtype=np.uint8)) for _ in range(AHEAD)]
    words.say(f"connected{rank}")
    began = words.hear("go")
    came = [0, began]

    def move() -> None:
        begin, under_way = (dist.isend, dist.irecv)[rank], deque()
        for i in range(pieces + AHEAD):
            if i >= AHEAD:
                under_way.popleft().wait()
                came[:] = i - AHEAD + 1, time.monotonic()
            if i < pieces:
                under_way.append(begin(buffers[i % AHEAD], 1 - rank))

    if rank == 0:
        move()
        signal.pause()
    receiver = threading.Thread(target=move, daemon=True)
    receiver.start()
    receiver.join(max(began + order["seconds"] - time.monotonic(), 0))
    count, last = came
    seconds = last - began if count == pieces else order["seconds"]
    words.say("found", {"bytes": count * PIECE, "seconds": seconds})


def main(folder: Path, rank: int) -> None:
    """Obey orders until there is none."""
    words = Words(folder)
    while True:
        words.say(f"ready{rank}")
        order = words.hear("plan")
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            try:
                turn(words, rank, order)
            finally:
                os._exit(0)
        words.hear("found")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        words.number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
