"""Exchanges between all ranks while a reducer is set up: collective, yet every wait ends."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from hvd_gradflow.errors import MismatchError, PeerError


def finish(request, timeout: float, what: str) -> None:
    """Wait for an MPI request by testing it, without keeping a core busy.

    Raises
    ------
    PeerError
        If `timeout` seconds were not enough: not every rank takes part.
    """
    deadline = time.monotonic() + timeout
    pause = 1e-5
    while not request.Test():
        if time.monotonic() > deadline:
            raise PeerError(f"{what}: not every rank took part within {timeout:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def exchange(comm, value: Any, timeout: float, what: str) -> list[Any]:
    """Give every rank the (JSON-able) values of all ranks, in order of rank."""
    mine = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    sizes = np.zeros(comm.size, dtype=np.int32)
    finish(comm.Iallgather(np.array([mine.size], np.int32), sizes), timeout, what)
    everything = np.zeros(int(sizes.sum()), dtype=np.uint8)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    finish(comm.Iallgatherv(mine, [everything, sizes, offsets, _byte()]), timeout, what)
    return [json.loads(everything[o : o + n].tobytes()) for o, n in zip(offsets, sizes, strict=True)]


def _byte():
    from mpi4py import MPI

    return MPI.BYTE


def require_equal(values: list[dict[str, Any]], what: str) -> None:
    """Refuse dictionaries that are not the same on all ranks, naming key and ranks."""
    for key in sorted({k for value in values for k in value}):
        seen = [value.get(key) for value in values]
        expected = max(seen, key=lambda v: (seen.count(v), -seen.index(v)))
        others = [rank for rank, v in enumerate(seen) if v != expected]
        if others:
            found = ", ".join(sorted({repr(seen[r]) for r in others}))
            raise MismatchError(
                f"{what} {key}: ranks {others} have {found}, the others {expected!r}; "
                "give every rank the same (mpirun forwards a variable with -x NAME)"
            )
