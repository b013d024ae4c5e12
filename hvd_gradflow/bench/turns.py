"""Contenders take turns, so that all see the same machine; the slowest rank's time is what counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvd_gradflow.bench.link import Link

LEAST = 3  # runs that a median is taken of, whatever they take
ENOUGH = 7  # with fewer the quartiles say little
MOST = 301


@dataclass(frozen=True)
class Sample:
    """One exchange: seconds of the slowest rank, bytes of the busiest node, bytes all ranks gave to MPI."""

    seconds: float
    link_bytes: int | None
    handed: int | None


@dataclass
class Contender:
    """One way to exchange something; made on all ranks alike.

    Parameters
    ----------
    system, codec : str
        What it is.
    call : callable
        One exchange, finished when it returns.
    result : callable, optional
        What the last call gave on this rank: a flat float32 array.
    handed : callable, optional
        Bytes that this rank has given to MPI for other nodes so far, where the contender counts them.
    encoded : int, optional
        Bytes of the whole encoded tensor; None where they follow from what was handed over.
    start : callable, optional
        `call` in two: starts the exchange and returns what waits for it.
    prepare : callable, optional
        Puts in place what the next call takes; its time is not counted.
    """

    system: str
    codec: str
    call: Callable[[], object]
    result: Callable[[], np.ndarray] | None = None
    handed: Callable[[], int] | None = None
    encoded: int | None = None
    start: Callable[[], Callable[[], object]] | None = None
    prepare: Callable[[], object] = lambda: None
    samples: list[Sample] = field(default_factory=list)

    def encoded_bytes(self, nodes: int) -> float | None:
        """Return the bytes of the encoded tensor, sent 2 (N - 1) times in all; the same on all ranks."""
        if self.encoded is not None:
            return self.encoded
        last = self.samples[-1].handed if self.samples else None
        return None if last is None or nodes < 2 else last / (2 * (nodes - 1))


def take_turns(
    comm: Any,
    contenders: Sequence[Contender],
    link: Link,
    *,
    repeats: int | None,
    seconds: float,
    after_first: Callable[[Contender], None] = lambda contender: None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the contenders in turn and leave their samples in them; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    contenders : sequence of Contender
    link : Link
        Counts bytes.
    repeats : int or None
        Runs of each; None: as many as `seconds` allow, but at least LEAST and at most MOST.
    seconds : float
        About how long all runs together may take.
    after_first : callable
        Called after each contender's first run, not timed.
    say : callable
        Takes a sentence where there is something to say of the number of runs.
    """
    for contender in contenders:
        contender.samples.append(_sample(comm, contender, link))
        after_first(contender)
    once = sum(c.samples[0].seconds for c in contenders)
    if once < seconds / LEAST:  # the first run is slower than others: one more to judge by
        once = _round(comm, contenders, link)
    count = repeats or max(LEAST, min(MOST, int(seconds / once)))
    if count < ENOUGH and repeats is None:
        say(f"{count} runs only, as one of each takes {once:.1f} s: --seconds or --repeats give more")
    for contender in contenders:
        del contender.samples[:-1]  # the raw exchange goes by the last one
    for _ in range(count):
        _round(comm, contenders, link)
    for contender in contenders:
        del contender.samples[0]


def _round(comm: Any, contenders: Sequence[Contender], link: Link) -> float:
    for contender in contenders:
        contender.samples.append(_sample(comm, contender, link))
    return sum(c.samples[-1].seconds for c in contenders)


def _sample(comm: Any, contender: Contender, link: Link) -> Sample:
    contender.prepare()
    comm.Barrier()
    handed, sent = _read(contender, link)
    comm.Barrier()
    began = time.perf_counter()
    contender.call()
    seconds = time.perf_counter() - began
    comm.Barrier()  # counters of a node are read once its other ranks are done, too
    handed_then, sent_then = _read(contender, link)
    rows = comm.allgather((seconds, handed_then - handed, sent_then - sent))
    counts = contender.handed is not None
    return Sample(
        max(row[0] for row in rows),
        link.busiest([row[2] for row in rows], [row[1] for row in rows] if counts else None),
        sum(row[1] for row in rows) if counts else None,
    )


def _read(contender: Contender, link: Link) -> tuple[int, int]:
    return contender.handed() if contender.handed else 0, link.transmitted()


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(low), float(median), float(high)
