"""This process's side of Horovod: what it can carry, the reducers in use, their start and end."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

from hvd_gradflow.errors import GradflowError, UnsupportedError
from hvd_gradflow.reduce import Reducer, default_reducer
from hvd_gradflow.torch.watchdog import guarded

_reducers: dict[tuple[int, ...] | None, Reducer] = {}
_scopes: Counter[int] = Counter()
_joins: Counter[int] = Counter()
_extra: Counter[str] = Counter()  # what this front end itself put on Horovod's wire
_world_ranks: list[int] | None = None  # MPI's world rank of each Horovod rank, where init() was told


def horovod() -> Any:
    """Return the module ``horovod.torch``."""
    try:
        return import_module("horovod.torch")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"hvd_gradflow.torch stands on Horovod, which cannot be imported ({error}): build it with"
            " HOROVOD_WITH_MPI=1 HOROVOD_WITH_PYTORCH=1"
        ) from error


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Initialise Horovod, as ``horovod.torch.init`` does.

    Parameters
    ----------
    comm : list of int, or mpi4py communicator, optional
        The ranks that make up Horovod's world.
    process_sets : list of ProcessSet, or "dynamic", optional
        As in Horovod.
    """
    global _world_ranks
    horovod().init(comm, process_sets)
    _world_ranks = None
    if comm is None:
        return
    if isinstance(comm, (list, tuple, range)):
        _world_ranks = list(comm) or None
    else:
        from mpi4py import MPI

        group = comm.Get_group()
        _world_ranks = list(MPI.Group.Translate_ranks(group, None, MPI.COMM_WORLD.Get_group()))


def shutdown() -> None:
    """End the reducers, then Horovod: it may finalize MPI, which they stand on."""
    global _world_ranks
    for reducer in _reducers.values():
        reducer.close()
    _reducers.clear()
    _scopes.clear()
    _joins.clear()
    _world_ranks = None
    horovod().shutdown()


def obstacle() -> str | None:
    """Return why the running Horovod cannot carry compressed gradients, with the remedy; None if it can."""
    hvd = horovod()
    if not hvd.mpi_built():
        return (
            "compressed gradients travel by MPI, and this Horovod was built without it (hvd.mpi_built() is"
            " False): rebuild it with HOROVOD_WITH_MPI=1"
        )
    if not hvd.is_initialized():
        return "Horovod is not initialised: call hvd.init() first"
    if not hvd.mpi_enabled():
        carrier = "Gloo" if hvd.gloo_enabled() else "something other than MPI"
        return (
            f"compressed gradients travel by MPI, and this job runs under {carrier}: start it with mpirun or"
            " `horovodrun --mpi`, and without elastic mode"
        )
    if not hvd.mpi_threads_supported():
        return (
            "compressed gradients need MPI_THREAD_MULTIPLE, and this MPI was initialised with less: unset"
            " HOROVOD_MPI_THREADS_DISABLE, or use an MPI that supports threads"
        )
    return None


def require(what: str) -> None:
    """Raise UnsupportedError unless compressed gradients can be carried."""
    why = obstacle()
    if why:
        raise UnsupportedError(f"{what}: {why}")


def reducer_of(process_set: Any) -> Reducer:
    """Return the reducer of a process set; collective over its members at the first call."""
    ranks = None if process_set.process_set_id in (0, None) else tuple(process_set.ranks)
    world = _ranks_in_world(ranks)
    reducer = _reducers.get(world)
    if reducer is None:
        reducer = _reducers[world] = default_reducer(world)
    return reducer


def _ranks_in_world(ranks: tuple[int, ...] | None) -> tuple[int, ...] | None:
    from mpi4py import MPI

    hvd, world = horovod(), MPI.COMM_WORLD
    if _world_ranks is not None:
        chosen = sorted(_world_ranks[r] for r in (range(len(_world_ranks)) if ranks is None else ranks))
        return None if len(chosen) == world.size else tuple(chosen)
    if (hvd.rank(), hvd.size()) != (world.rank, world.size):
        raise UnsupportedError(
            f"Horovod calls this process rank {hvd.rank()} of {hvd.size()}, MPI calls it {world.rank} of"
            f" {world.size}: call hvd_gradflow.torch.init(comm=...) in place of horovod.torch.init(comm=...)"
        )
    return ranks


def next_scope(reducer: Reducer, kind: str) -> str:
    """Return the scope of the next set of gradients on `reducer`: its number in order of creation."""
    _scopes[id(reducer)] += 1
    return f"{kind}{_scopes[id(reducer)]}"


def join(device: int = -1) -> int:
    """Tell the others that this rank has no more data; they go on, its gradients count as zero.

    Blocks until every rank has joined.

    Returns
    -------
    int
        The rank that joined last.
    """
    world = _reducers.get(_ranks_in_world(None)) if _reducers else None
    if world is None:
        return horovod().join(device)
    handle = world.join_async()
    with guarded(world):
        last = horovod().join(device)
    handle.wait()
    _joins[id(world)] += 1
    return last


def joins(reducer: Reducer) -> int:
    """Return how often all ranks of `reducer` have joined: what they agreed upon before may not hold."""
    return _joins[id(reducer)]


def on_horovods_wire(counts: Counter[str], bytes_sent: float, uncompressed: float) -> None:
    """Count bytes that this front end moved by Horovod, for one object (`counts`) and for the process."""
    for counter in (counts, _extra):
        counter["wire_bytes"] += round(bytes_sent)
        counter["wire_bytes_uncompressed"] += round(uncompressed)


def wire_counters(of: Any = None) -> dict[str, int]:
    """Return what this rank has sent.

    Parameters
    ----------
    of : optional
        A distributed optimizer or a bound compressor: what its own part moved by Horovod, plus all that the
        reducer of its process set sent. By default everything of this process.

    Returns
    -------
    dict of str to int
        As :meth:`hvd_gradflow.reduce.Reducer.counters`: ``wire_bytes`` sent, ``wire_bytes_uncompressed``
        that would have been sent as they are, and more.
    """
    if of is None:
        reducers, extra = list(_reducers.values()), _extra
    else:
        source = getattr(of, "gradflow", of)
        if source is not None and not hasattr(source, "sent_by_horovod"):
            raise GradflowError(
                f"{of!r} exchanges no gradients: expected a distributed optimizer or a bound compressor"
            )
        if source is None or source.reducer is None:
            return dict.fromkeys(("wire_bytes", "wire_bytes_uncompressed", "units"), 0)
        reducers, extra = [source.reducer], source.sent_by_horovod
    total: Counter[str] = Counter({"wire_bytes": 0, "wire_bytes_uncompressed": 0, "units": 0})
    for counts in (*(r.counters() for r in reducers), extra):
        total.update(counts)
    return dict(total)
