"""The ranks of one reducer: their communicator, their nodes, and what carries messages between these."""

from __future__ import annotations

from typing import Any

import hvd_gradflow
from hvd_gradflow.config import Config
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.reduce.agreement import exchange, finish, native, require_equal
from hvd_gradflow.reduce.topology import discover, tell_of_no_datagrams

MOST_NODES = 64  # with a deadline: a bit each in the header of a result
_THREADS = (
    "MPI runs without MPI_THREAD_MULTIPLE, which the background engine needs; import mpi4py (or call "
    "hvd.init()) before anything else initializes MPI, and use an MPI library with threads"
)


class Group:
    """The ranks of one reducer; made collectively over `comm`, of which it uses a duplicate.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Default: COMM_WORLD.
    asked : Config
        What must be alike on all ranks.
    name : str
        The reducer's.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The duplicate.
    config : Config
        `asked`, resolved.
    nodes : list of list of int
        Ranks of each node.
    node : list of int
        Ranks of this one.
    link : optional
        What carries messages between nodes, where it is not MPI.

    Raises
    ------
    UnsupportedError
        MPI was not initialized with ``MPI_THREAD_MULTIPLE``; a deadline with more than `MOST_NODES` nodes.
    MismatchError
        The ranks' settings differ; names key and ranks.
    """

    def __init__(self, comm, asked: Config, name: str) -> None:
        from mpi4py import MPI

        self.config, self.name = asked.resolved(), name
        self.comm: Any
        self.comm, request = (MPI.COMM_WORLD if comm is None else comm).Idup()
        finish(request, self.config.submit_timeout, f"setting up the reducer {name!r}")
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        # As asked, not what follows: of two ranks with other deadlines the chunks differ, too.
        settings = {"version": hvd_gradflow.__version__, **asked.shared()}
        require_equal(self.exchange(settings, "setting up a reducer"), "setting")
        chunk = self.config.chunk_kib * 1024
        self._topology = discover(
            self.comm,
            MPI.Get_processor_name(),
            self.config,
            lambda ranks: native().shared_bytes(ranks, self.config.shm_slots, chunk),
        )
        self.nodes, self.node = self._topology.nodes, self._topology.node
        self.link: Any = self._connect() if self.config.transport == "udp" else None

    def _connect(self) -> Any:
        """Connect the nodes by datagrams; None if there is one only."""
        from mpi4py import MPI

        from hvd_gradflow.comm import udp

        nodes, deadline = len(self.nodes), self.config.deadline_ms
        if nodes == 1:
            if self.comm.rank == 0:
                tell_of_no_datagrams(self.name, self.comm.size)
            return None
        if deadline and nodes > MOST_NODES:
            raise UnsupportedError(
                f"deadline_ms={deadline:g} (GRADFLOW_DEADLINE_MS) with {nodes} nodes: a result tells of at"
                f" most {MOST_NODES}; use 0"
            )
        return udp.connect(self.comm.rank, self.nodes, MPI.Get_processor_name(), self.config, self.exchange)

    def open_in(self, engine: Any) -> int:
        """Let an engine know these ranks; returns the number of their domain there."""
        from mpi4py import MPI

        return engine.open(
            MPI._addressof(self.comm),
            self.comm.rank,
            self.comm.size,
            self.nodes,
            self.config,
            self._topology.address,
            self.name,
            None if self.link is None else self.link.capsule,
        )

    def exchange(self, value: Any, what: str) -> list[Any]:
        """Give every rank the (JSON-able) values of all ranks, in order of rank; collective."""
        return exchange(self.comm, value, self.config.submit_timeout, what)

    def leave(self) -> None:
        """Free the communicator, when all ranks are here."""
        with native().MpiCalls() as call:
            finish(call(self.comm.Ibarrier), self.config.submit_timeout, f"closing the reducer {self.name!r}")
            call(self.comm.Free)


def require_threads() -> None:
    """Refuse an MPI that the background engine cannot work beside.

    Raises
    ------
    UnsupportedError
        It was not initialized with ``MPI_THREAD_MULTIPLE``.
    """
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UnsupportedError(_THREADS)
