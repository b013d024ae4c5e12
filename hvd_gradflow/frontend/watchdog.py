"""Ends a process that Horovod keeps waiting for a rank which our engine already knows is gone.

Horovod waits without limit. Where its wait belongs to a reduction of ours (the stock path's tokens, sparse
gradients, ``join``), the engine's failure has to end it: nobody else looks at the engine then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

POLL_SECONDS = 0.25
# The main thread may be about to find the failure by itself, and raise it where a user can catch it.
GRACE_SECONDS = 5.0

_lock = threading.Lock()
_waits: Counter[int] = Counter()
_reducers: dict[int, Any] = {}
_thread: threading.Thread | None = None


def enter(reducer: Any) -> None:
    """Note that a wait of Horovod's depends on `reducer`."""
    global _thread
    with _lock:
        _waits[id(reducer)] += 1
        _reducers[id(reducer)] = reducer
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_watch, name="gradflow-watchdog", daemon=True)
            _thread.start()


def leave(reducer: Any) -> None:
    """Note that it has ended."""
    with _lock:
        if _waits[id(reducer)] > 0:
            _waits[id(reducer)] -= 1


def forget(reducer: Any) -> None:
    """Note that the caller learned of the failure: what happens now is the caller's affair."""
    with _lock:
        _waits.pop(id(reducer), None)
        _reducers.pop(id(reducer), None)


@contextmanager
def guarded(reducer: Any) -> Iterator[None]:
    """Guard one wait of Horovod's."""
    enter(reducer)
    try:
        yield
    finally:
        leave(reducer)


def _watch() -> None:
    failed_since: dict[int, float] = {}
    while True:
        time.sleep(POLL_SECONDS)
        with _lock:
            waiting = [(key, r) for key, r in _reducers.items() if _waits[key] > 0]
        for key, reducer in waiting:
            if reducer.failure is None:
                continue
            since = failed_since.setdefault(key, time.monotonic())
            with _lock:
                still = _waits[key] > 0
            if still and time.monotonic() - since >= GRACE_SECONDS:
                _abort(reducer.failure)


def _abort(failure: str) -> None:
    from hvd_gradflow.reduce import lifecycle

    print(
        f"hvd_gradflow: {failure}; Horovod would wait on, so the job is aborted", file=sys.stderr, flush=True
    )
    lifecycle.abort()
