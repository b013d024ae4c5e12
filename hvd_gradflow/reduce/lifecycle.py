"""The engine of this process, the reducers it serves, and how all of it ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

from hvd_gradflow import config, events
from hvd_gradflow.errors import GradflowError, PeerError
from hvd_gradflow.reduce.agreement import announce, meet, rows
from hvd_gradflow.reduce.layout import digest, plan_name
from hvd_gradflow.reduce.route import Route

_FAREWELL = 5.0  # seconds to tell the other ranks before the process aborts
_LAST_RESORT = 20.0  # seconds that MPI_Abort may take

_engine: Any = None
_warner: Any = None  # the thread that passes on the engine's warnings
_lock = threading.Lock()
# Until it is closed the engine reads a reducer's memory, whether or not the program still holds it.
_reducers: list[Any] = []
_defaults: dict[tuple[tuple[int, ...] | None, str, float], Any] = {}  # by ranks, transport and deadline
_previous_hook: Any = None
_in_child = False  # forked from a process with an engine


def engine():
    """Return the one engine of this process, started at the first call."""
    global _engine, _previous_hook, _warner
    check_process()
    with _lock:
        if _engine is None:
            from hvd_gradflow.device import _kernels
            from hvd_gradflow.reduce import _engine as native

            _engine = native.NativeEngine(_kernels.api_capsule())
            _warner = threading.Thread(target=_pass_on_warnings, args=(_engine,), daemon=True)
            _warner.start()
            atexit.register(_at_exit)
            os.register_at_fork(after_in_child=_forked)
            _previous_hook = sys.excepthook
            sys.excepthook = _uncaught
        return _engine


def _pass_on_warnings(engine) -> None:
    for text in engine.warnings():
        events.warn("%s", text)


def _forked() -> None:
    """The engine's thread is not in a forked child, and MPI must not be used there."""
    global _in_child
    _in_child = _engine is not None


def check_process() -> None:
    """Raise GradflowError in a child that was forked from a process with an engine."""
    if _in_child:
        raise GradflowError(
            "this process was forked from one whose engine reduces gradients, and cannot reduce any itself; "
            "start it with the method 'spawn'"
        )


def require_mpi() -> None:
    """Raise PeerError where MPI is over, before a call of it, which would end in a segmentation fault.

    Horovod ends MPI on all ranks when one of them exits.
    """
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise PeerError(
            "MPI was finalized: another rank has ended (its message tells why), or hvd.shutdown() was called"
        )


def register(reducer) -> None:
    """Close this reducer at exit, if it is not closed before."""
    _reducers[:] = [r for r in _reducers if not r.closed]
    _reducers.append(reducer)


def default_reducer(
    ranks=None, *, transport: str | None = None, deadline_ms: float | None = None, scope: str | None = None
):
    """Return the process-wide reducer of a set of world ranks for one transport, made at the first call.

    The first call is collective over these ranks. Whoever of them asks for another transport learns it, by
    the settings of the first reducer, and later by what is announced on that.

    Parameters
    ----------
    ranks : sequence of int, optional
        Default: all.
    transport, deadline_ms : optional
        As of :class:`Route`.
    scope : str, optional
        Of the stream that is to be opened; the same for those that the other ranks open instead.

    Raises
    ------
    MismatchError
        Other ranks asked for another transport.
    """
    from mpi4py import MPI

    from hvd_gradflow.reduce.reducer import Reducer

    require_mpi()
    settings = Route(transport, deadline_ms).applied(config.load())
    settings.resolved()  # refuses what excludes each other, before ranks wait
    members = _members(ranks)
    key = (members, settings.transport, settings.deadline_ms)
    reducer, first = _defaults.get(key), first_reducer(ranks)
    missing = reducer is None or reducer.closed
    if first is not None and first is not reducer and (missing or scope):
        _compare_ways(first, settings.transport, settings.deadline_ms, scope, missing)
    if missing:
        if members is None:
            reducer = Reducer(MPI.COMM_WORLD, config=settings, name="world")
        else:
            name = f"ranks {list(members)}"
            # Create_group would wait without end, and inside MPI, for a rank that does not come.
            meet(MPI.COMM_WORLD, members, settings.submit_timeout, f"setting up the reducer of {name}")
            comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(members))
            reducer = Reducer(comm, config=settings, name=name)
        _defaults[key] = reducer
    return reducer


def first_reducer(ranks=None):
    """Return the reducer of a set of world ranks that was opened first, the same on all of them; or None."""
    members = _members(ranks)
    found = [r for key, r in _defaults.items() if key[0] == members and not r.closed]
    return min(found, key=lambda r: r.domain, default=None)


def _members(ranks) -> tuple[int, ...] | None:
    from mpi4py import MPI

    members = None if ranks is None else tuple(sorted(ranks))
    return None if members == tuple(range(MPI.COMM_WORLD.size)) else members


def _compare_ways(first, transport: str, deadline_ms: float, scope: str | None, opens: bool) -> None:
    """Let ranks learn, by the reducer opened first, if some go another way; wait if this one `opens` one.

    Under the name of a stream's plan, so that ranks whose stream is on `first` itself are told at once.
    """
    way = f"transport={transport!r}, deadline_ms={deadline_ms:g}"
    if scope is None:
        name = "(a reducer of another transport or deadline)"
        line = f"{name}\t0\t{transport=}\t{deadline_ms=}"
    else:
        name = plan_name(scope)
        line = f"{scope} by {way}\t0"
    handle = announce(first, name, (line, digest(line)))
    if not opens:
        return
    handle.wait()
    there = rows(first, f"{name}, ranks", []).wait()[:, -1]
    first.forget([name, f"{name}, ranks"])
    if not there.all():
        raise GradflowError(
            f"opening a reducer for {way}: ranks {[r for r, yes in enumerate(there) if not yes]} have joined"
            " and cannot take part: use it once before any rank calls join()"
        )


def _open_reducers() -> list:
    return sorted((r for r in _reducers if not r.closed), key=lambda r: r.domain)


def _uncaught(kind, value, trace) -> None:
    """Let the other ranks know of an exception that ends this process, then abort the job."""
    _previous_hook(kind, value, trace)
    if _in_child:
        return
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
    if _in_child:
        return
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
    _warner.join(_FAREWELL)  # it must not wake up in an interpreter that is half gone
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

    if MPI.Is_finalized():
        os._exit(code)
    threading.Thread(target=last_resort, daemon=True).start()
    MPI.COMM_WORLD.Abort(code)
