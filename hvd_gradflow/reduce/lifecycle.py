"""The engine of this process, the reducers it serves, and how all of it ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

from hvd_gradflow import events

_FAREWELL = 5.0  # seconds to tell the other ranks before the process aborts
_LAST_RESORT = 20.0  # seconds that MPI_Abort may take

_engine: Any = None
_lock = threading.Lock()
# Until it is closed the engine reads a reducer's memory, whether or not the program still holds it.
_reducers: list[Any] = []
_defaults: dict[tuple[int, ...] | None, Any] = {}
_previous_hook: Any = None


def engine():
    """Return the one engine of this process, started at the first call."""
    global _engine, _previous_hook
    with _lock:
        if _engine is None:
            from hvd_gradflow.device import _kernels
            from hvd_gradflow.reduce import _engine as native

            _engine = native.NativeEngine(_kernels.api_capsule(), events.warn)
            atexit.register(_at_exit)
            _previous_hook = sys.excepthook
            sys.excepthook = _uncaught
        return _engine


def register(reducer) -> None:
    """Close this reducer at exit, if it is not closed before."""
    _reducers[:] = [r for r in _reducers if not r.closed]
    _reducers.append(reducer)


def default_reducer(ranks=None):
    """Return the process-wide reducer of a set of world ranks (None: all), made at the first call.

    The first call is collective over these ranks.
    """
    from mpi4py import MPI

    from hvd_gradflow.reduce.reducer import Reducer

    key = None if ranks is None else tuple(sorted(ranks))
    if key == tuple(range(MPI.COMM_WORLD.size)):
        key = None
    reducer = _defaults.get(key)
    if reducer is None or reducer.closed:
        if key is None:
            reducer = Reducer(MPI.COMM_WORLD, name="world")
        else:
            group = MPI.COMM_WORLD.group.Incl(key)
            comm = MPI.COMM_WORLD.Create_group(group)
            reducer = Reducer(comm, name=f"ranks {list(key)}")
        _defaults[key] = reducer
    return reducer


def _open_reducers() -> list:
    return sorted((r for r in _reducers if not r.closed), key=lambda r: r.domain)


def _uncaught(kind, value, trace) -> None:
    """Let the other ranks know of an exception that ends this process, then abort the job."""
    _previous_hook(kind, value, trace)
    shared = [r for r in _open_reducers() if r.size > 1]
    if not shared:
        return
    for reducer in shared:
        if reducer.failure is None:
            reducer.abort(f"rank {reducer.rank} ended with {kind.__name__}: {value}")
    deadline = time.monotonic() + _FAREWELL
    for reducer in shared:
        _engine.wait_closed(reducer.domain, max(0.0, deadline - time.monotonic()))
    abort()


def _at_exit() -> None:
    failed = False
    # All begin to close before any is waited for: ranks may hold several reducers in different orders.
    for reducer in _open_reducers():
        _engine.close(reducer.domain)
    for reducer in _open_reducers():
        if reducer.failure is None:
            reducer.close(quiet=True)
        if reducer.failure is not None and reducer.size > 1:
            print(f"hvd_gradflow: {reducer.failure}", file=sys.stderr, flush=True)
            _engine.wait_closed(reducer.domain, _FAREWELL)
            failed = True
    _engine.stop()
    if failed:
        abort()


def abort(code: int = 1) -> None:
    """End the whole job. MPI_Finalize would wait for a rank that is gone."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()

    def last_resort() -> None:
        time.sleep(_LAST_RESORT)
        os._exit(code)

    threading.Thread(target=last_resort, daemon=True).start()
    MPI.COMM_WORLD.Abort(code)
