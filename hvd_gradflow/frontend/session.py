"""This process's side of Horovod: what it can carry, the reducers in use, their start and end."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from hvd_gradflow import config, events
from hvd_gradflow.analyze import record
from hvd_gradflow.errors import GradflowError, UnsupportedError
from hvd_gradflow.frontend.modules import horovods
from hvd_gradflow.frontend.watchdog import guarded
from hvd_gradflow.reduce import Reducer, default_reducer
from hvd_gradflow.reduce.lifecycle import require_mpi
from hvd_gradflow.reduce.place import check_setting

_scopes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # streams made so far, by reducer


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
        self._reducers: dict[tuple[int, ...] | None, Reducer] = {}
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
        for reducer in self._reducers.values():
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

    def reducer_of(self, process_set: Any) -> Reducer:
        """Return the reducer of a process set; collective over its members at the first call."""
        ranks = None if process_set.process_set_id in (0, None) else tuple(process_set.ranks)
        world = self._ranks_in_world(ranks)
        reducer = self._reducers.get(world)
        if reducer is None or reducer.closed:
            reducer = self._reducers[world] = default_reducer(world)
            settings = reducer.config
            if settings.analyze and self._recorder is None:
                self._recorder = record.of_process(
                    settings.analyze, settings.analyze_every, settings.chunk_kib
                )
            reducer.recorder = self._recorder
        return reducer

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
        for reducer in self._reducers.values():
            reducer.recorder = self._recorder
            for stream in reducer.streams.values():
                stream.recorder = self._recorder

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

    def next_scope(self, reducer: Reducer, kind: str) -> str:
        """Return the scope of the next set of gradients on `reducer`: its number in order of creation."""
        _scopes[reducer] = _scopes.get(reducer, 0) + 1
        return f"{kind}{_scopes[reducer]}"

    def join(self, device: int = -1) -> int:
        """Tell the others that this rank has no more data; they go on, its gradients count as zero.

        Blocks until every rank has joined.

        Returns
        -------
        int
            The rank that joined last.
        """
        world = self._reducers.get(self._ranks_in_world(None)) if self._reducers else None
        if world is None:
            return self._join(device)
        handle = world.join_async()
        with guarded(world):
            last = self._join(device)
        handle.wait()
        self._joins[id(world)] += 1
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
            reducers, extra = list(self._reducers.values()), self._extra
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
