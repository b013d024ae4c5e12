"""Agreements of all ranks: while a reducer is set up, and by the engine later; yet every wait ends."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow.codec import get
from hvd_gradflow.errors import MismatchError, PeerError
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.layout import DTYPES

if TYPE_CHECKING:
    from hvd_gradflow.reduce.handle import Handle
    from hvd_gradflow.reduce.reducer import Reducer

_given_up: list[Any] = []  # requests that MPI may still complete, with the buffers they belong to


def finish(request, timeout: float, what: str, *buffers) -> None:
    """Wait for an MPI request by testing it, without keeping a core busy.

    Raises
    ------
    PeerError
        If `timeout` seconds were not enough: not every rank takes part. Or MPI was finalized meanwhile.
    """
    deadline = time.monotonic() + timeout
    pause = 1e-5
    with native().MpiCalls() as call:
        while not call(request.Test):
            if time.monotonic() > deadline:
                _given_up.append((request, buffers))
                raise PeerError(f"{what}: not every rank took part within {timeout:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.01)


def native() -> Any:
    """Return the compiled engine, which is loaded only where ranks reduce."""
    from hvd_gradflow.reduce import _engine

    return _engine


def exchange(comm, value: Any, timeout: float, what: str) -> list[Any]:
    """Give every rank the (JSON-able) values of all ranks, in order of rank."""
    mine = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    sizes = np.zeros(comm.size, dtype=np.int32)
    size = np.array([mine.size], np.int32)
    finish(comm.Iallgather(size, sizes), timeout, what, size, sizes)
    everything = np.zeros(int(sizes.sum()), dtype=np.uint8)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    request = comm.Iallgatherv(mine, [everything, sizes, offsets, _byte()])
    finish(request, timeout, what, mine, everything, sizes, offsets)
    return [json.loads(everything[o : o + n].tobytes()) for o, n in zip(offsets, sizes, strict=True)]


def _byte():
    from mpi4py import MPI

    return MPI.BYTE


def meet(comm, ranks, timeout: float, what: str) -> None:
    """Wait until all of these ranks have called this; only they need to.

    Raises
    ------
    PeerError
        Naming the ranks that have not come in time.
    """
    tag = (
        20000
        + int.from_bytes(hashlib.blake2b(str(tuple(ranks)).encode(), digest_size=2).digest(), "little")
        % 10000
    )
    others = [r for r in ranks if r != comm.rank]
    nothing = np.zeros(0, np.uint8)
    sends = [comm.Isend(nothing, dest=r, tag=tag) for r in others]
    arrivals = {r: comm.Irecv(nothing, source=r, tag=tag) for r in others}
    deadline = time.monotonic() + timeout
    with native().MpiCalls() as call:
        while missing := [r for r, request in arrivals.items() if not call(request.Test)]:
            if time.monotonic() > deadline:
                _given_up.append((sends, arrivals, nothing))
                raise PeerError(f"{what}: ranks {missing} did not take part within {timeout:g} s")
            time.sleep(0.001)
    for request in sends:
        finish(request, timeout, what, nothing)


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


def announce(reducer: Reducer, name: str, identity: tuple[str, int]) -> Handle:
    """Submit a unit of no elements: ranks whose manifests (`identity`) differ learn it by name."""
    from hvd_gradflow.reduce.handle import Handle

    unit = reducer.submit(
        name=name,
        identity=identity,
        codec=get("none"),
        dtype=DTYPES["float32"],
        elements=0,
        source=0,
        target=0,
        factors=Factors(1.0, 1.0, 1.0, 1.0),
        keep=None,
    )
    return Handle(reducer.engine, unit, name, lambda unit: None)


def rows(reducer: Reducer, name: str, row: Sequence[float]) -> Handle:
    """Give every rank the numbers of all ranks; its result is float64 of shape (ranks, numbers + 1).

    The last column tells who is there: 1, or 0 for a rank that has joined.
    """
    matrix = np.zeros((reducer.size, len(row) + 1))
    matrix[reducer.rank] = (*row, 1.0)
    return reducer.allreduce_async(matrix, name, op="sum", codec="none", out=matrix)
