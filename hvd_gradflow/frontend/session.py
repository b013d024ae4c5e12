"""This process's side of Horovod: what it can carry, the reducers in use, their start and end."""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from hvd_gradflow import config, events
from hvd_gradflow.analyze import record
from hvd_gradflow.errors import GradflowError, UnsupportedError
from hvd_gradflow.frontend.modules import horovods
from hvd_gradflow.frontend.watchdog import guarded
from hvd_gradflow.reduce import Reducer, default_reducer
from hvd_gradflow.reduce.lifecycle import first_reducer, require_mpi
from hvd_gradflow.reduce.place import check_setting
from hvd_gradflow.reduce.route import Route

# Streams made so far, by the reducer that was opened first for their ranks.
_scopes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class Session:
    """Horovod as one framework sees it.

    Parameters
    ----------
    module : str
        Horovod's module for the framework, for example ``"horovod.torch"``. Each has a library and a state of
        its own.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self._reducers: dict[tuple[tuple[int, ...] | None, Route], Reducer] = {}
        self._joins: Counter[int] = Counter()
        self._extra: Counter[str] = Counter()  # what the front end itself put on Horovod's wire
        self._world_ranks: list[int] | None = None  # MPI's rank of each Horovod rank, where init() was told
        self._recorder: record.Recorder | None = None
        self.generation = 0  # how often Horovod was shut down: what was made before is of no use

    def horovod(self) -> Any:
        """Return Horovod's module."""
        return horovods(self.module, self.module.replace("horovod", "hvd_gradflow", 1))

    def init(self, comm: Any = None, process_sets: Any = None) -> None:
        """Initialise Horovod, as ``horovod.init`` does.

        Parameters
        ----------
        comm : list of int, or mpi4py communicator, optional
            The ranks that make up Horovod's world.
        process_sets : list of ProcessSet, or "dynamic", optional
            As in Horovod.
        """
        check_setting(config.load().device)  # a wrong variable is told before ranks wait for each other
        self.horovod().init(comm, process_sets)
        if config.load().analyze:
            self._tell_if_alone()
        self._world_ranks = None
        if comm is None:
            return
        if isinstance(comm, (list, tuple, range)):
            self._world_ranks = list(comm) or None
        else:
            from mpi4py import MPI

            group = comm.Get_group()
            self._world_ranks = list(MPI.Group.Translate_ranks(group, None, MPI.COMM_WORLD.Get_group()))

    def shutdown(self) -> None:
        """End the reducers, then Horovod: it may finalize MPI, which they stand on."""
        for reducer in self.reducers():
            reducer.close()
        self._reducers.clear()
        self._joins.clear()
        self._world_ranks = None
        self.generation += 1
        self.horovod().shutdown()

    def obstacle(self) -> str | None:
        """Return why this Horovod cannot carry compressed gradients, with the remedy; None if it can."""
        hvd = self.horovod()
        if not hvd.mpi_built():
            return (
                "compressed gradients travel by MPI, and this Horovod was built without it (hvd.mpi_built()"
                " is False): rebuild it with HOROVOD_WITH_MPI=1"
            )
        if not hvd.is_initialized():
            return "Horovod is not initialised: call hvd.init() first"
        if not hvd.mpi_enabled():
            carrier = "Gloo" if hvd.gloo_enabled() else "something other than MPI"
            return (
                f"compressed gradients travel by MPI, and this job runs under {carrier}: start it with mpirun"
                " or `horovodrun --mpi`, and without elastic mode"
            )
        if not hvd.mpi_threads_supported():
            return (
                "compressed gradients need MPI_THREAD_MULTIPLE, and this MPI was initialised with less: unset"
                " HOROVOD_MPI_THREADS_DISABLE, or use an MPI that supports threads"
            )
        return None

    def require(self, what: str) -> None:
        """Raise UnsupportedError unless compressed gradients can be carried."""
        why = self.obstacle()
        if why:
            raise UnsupportedError(f"{what}: {why}")

    def reducer_of(self, process_set: Any, route: Route, scope: str | None = None) -> Reducer:
        """Return the reducer of a process set for one route; collective over its members at the first call.

        `scope` is that of a stream which is to be opened on it.
        """
        ranks = self._ranks_of(process_set)
        reducer = self._reducers.get((ranks, route))
        known = reducer is not None and not reducer.closed
        if reducer is None or not known or scope is not None:
            reducer = self._reducers[ranks, route] = default_reducer(ranks, scope=scope, **route.given)
        if not known:
            settings = reducer.config
            if settings.analyze and self._recorder is None:
                self._recorder = record.of_process(
                    settings.analyze, settings.analyze_every, settings.chunk_kib
                )
            reducer.recorder = self._recorder
        return reducer

    def reducer_and_scope(
        self, process_set: Any, route: Route, kind: str, scope: str | None = None
    ) -> tuple[Reducer, str]:
        """Return the reducer for a new set of gradients, and its scope.

        The scope is the number of the set in order of creation, on any route: so that ranks whose routes
        differ learn it.
        """
        first = first_reducer(self._ranks_of(process_set)) or self.reducer_of(process_set, route)
        if scope is None:
            _scopes[first] = _scopes.get(first, 0) + 1
            scope = f"{kind}{_scopes[first]}"
        return self.reducer_of(process_set, route, scope), scope

    def reducers(self) -> list[Reducer]:
        """Return the reducers in use, in the order in which they were opened."""
        # Several routes may lead to one: by what the environment says, and by saying the same.
        return sorted(set(self._reducers.values()), key=lambda r: r.domain)

    def record(self, path: str, every: int) -> None:
        """Record statistics of all gradients in a directory, for ``gradflow analyze``; on any ranks."""
        self._tell_if_alone()
        self.end_recording()
        self._recorder = record.start(path, every, config.load().chunk_kib)
        self._hand_on()

    def end_recording(self) -> None:
        """Record no more."""
        if self._recorder is not None:
            self._recorder.close()
        self._recorder = None
        self._hand_on()

    def _tell_if_alone(self) -> None:
        if self.horovod().size() == 1:
            events.warn("one rank exchanges no gradients, so none are recorded for analysis: start two")

    def _hand_on(self) -> None:
        for reducer in self.reducers():
            reducer.recorder = self._recorder
            for stream in reducer.streams.values():
                stream.recorder = self._recorder

    def _ranks_of(self, process_set: Any) -> tuple[int, ...] | None:
        return self._ranks_in_world(
            None if process_set.process_set_id in (0, None) else tuple(process_set.ranks)
        )

    def _ranks_in_world(self, ranks: tuple[int, ...] | None) -> tuple[int, ...] | None:
        from mpi4py import MPI

        require_mpi()
        hvd, world = self.horovod(), MPI.COMM_WORLD
        if self._world_ranks is not None:
            chosen = sorted(
                self._world_ranks[r] for r in (range(len(self._world_ranks)) if ranks is None else ranks)
            )
            return None if len(chosen) == world.size else tuple(chosen)
        if (hvd.rank(), hvd.size()) != (world.rank, world.size):
            raise UnsupportedError(
                f"Horovod calls this process rank {hvd.rank()} of {hvd.size()}, MPI calls it {world.rank} of"
                f" {world.size}: call hvd.init(comm=...) of hvd_gradflow in place of"
                f" {self.module}.init(comm=...)"
            )
        return ranks

    def join(self, device: int = -1) -> int:
        """Tell the others that this rank has no more data; they go on, its gradients count as zero.

        Blocks until every rank has joined.

        Returns
        -------
        int
            The rank that joined last.
        """
        world = self._ranks_in_world(None) if self._reducers else None
        found = {r for (ranks, _), r in self._reducers.items() if ranks == world and not r.closed}
        reducers = sorted(found, key=lambda r: r.domain)
        handles = [reducer.join_async() for reducer in reducers]
        with ExitStack() as guards:
            for reducer in reducers:
                guards.enter_context(guarded(reducer))
            last = self._join(device)
        for reducer, handle in zip(reducers, handles, strict=True):
            handle.wait()
            self._joins[id(reducer)] += 1
        return last

    def _join(self, device: int) -> int:
        join = self.horovod().join
        return int(
            join(device) if inspect.signature(join).parameters else join()
        )  # TensorFlow's has no device

    def joins(self, reducer: Reducer) -> int:
        """Return how often all ranks of `reducer` have joined: what they agreed upon before may not hold."""
        return self._joins[id(reducer)]

    def on_horovods_wire(self, counts: Counter[str], bytes_sent: float, uncompressed: float) -> None:
        """Count bytes that this front end moved by Horovod, for one object (`counts`) and for the process."""
        for counter in (counts, self._extra):
            counter["wire_bytes"] += round(bytes_sent)
            counter["wire_bytes_uncompressed"] += round(uncompressed)

    def wire_counters(self, of: Any = None) -> dict[str, int]:
        """Return what this rank has sent.

        Parameters
        ----------
        of : optional
            A distributed optimizer or a bound compressor: what its own part moved by Horovod, plus all that
            the reducer of its process set sent. By default everything of this process.

        Returns
        -------
        dict of str to int
            As :meth:`hvd_gradflow.reduce.Reducer.counters`: ``wire_bytes`` sent, ``wire_bytes_uncompressed``
            that would have been sent as they are, and more.
        """
        if of is None:
            reducers, extra = self.reducers(), self._extra
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
