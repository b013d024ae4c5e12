"""Reducer: allreduce over one communicator, compressed between its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

import hvd_gradflow
from hvd_gradflow import codec as codecs
from hvd_gradflow import config as configuration
from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError
from hvd_gradflow.reduce import lifecycle, single, single_device
from hvd_gradflow.reduce.agreement import exchange, finish, require_equal
from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.layout import digest, factorizes
from hvd_gradflow.reduce.normalizer import Normalizer
from hvd_gradflow.reduce.place import Place, check_setting, device_of
from hvd_gradflow.reduce.probe import Prober
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.topology import discover, tell_of_no_datagrams

_THREADS = (
    "MPI runs without MPI_THREAD_MULTIPLE, which the background engine needs; import mpi4py (or call "
    "hvd.init()) before anything else initializes MPI, and use an MPI library with threads"
)


MOST_NODES = 64  # with a deadline: a bit each in the header of a result


class Reducer:
    """Allreduce over one communicator.

    Collective over `comm`; works on a duplicate of it, so it never meets other traffic.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Default: COMM_WORLD.
    codec : str or Codec
        What leaves a node is encoded with it, if a call does not name another.
    config : Config, optional
        Default: from the environment.
    name : str
        Used in messages.

    Raises
    ------
    UnsupportedError
        MPI was not initialized with ``MPI_THREAD_MULTIPLE``.
    MismatchError
        The ranks' settings differ; names key and ranks.
    """

    def __init__(self, comm=None, codec="none", *, config=None, name: str = "world"):
        from mpi4py import MPI

        from hvd_gradflow.comm import udp
        from hvd_gradflow.reduce import _engine as native

        lifecycle.require_mpi()
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UnsupportedError(_THREADS)
        asked = configuration.load() if config is None else config
        self.config = asked.resolved()
        check_setting(self.config.device)
        self.name = name
        self.codec = _codec(codec)
        self.engine = lifecycle.engine()
        comm = MPI.COMM_WORLD if comm is None else comm
        self._comm, request = comm.Idup()
        finish(request, self.config.submit_timeout, f"setting up the reducer {name!r}")
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        # As asked, not what follows: of two ranks with other deadlines the chunks differ, too.
        settings = {"version": hvd_gradflow.__version__, **asked.shared()}
        require_equal(self.exchange(settings, "setting up a reducer"), "setting")
        chunk = self.config.chunk_kib * 1024
        self._topology = discover(
            self._comm,
            MPI.Get_processor_name(),
            self.config,
            lambda ranks: native.shared_bytes(ranks, self.config.shm_slots, chunk),
        )
        self.rank, self.size = self._comm.rank, self._comm.size
        self._link = None  # what carries messages between nodes, where it is not MPI
        if self.config.transport == "udp" and self.node_count == 1 and self.rank == 0:
            tell_of_no_datagrams(name, self.size)
        if self.config.transport == "udp" and self.node_count > 1:
            if self.config.deadline_ms and self.node_count > MOST_NODES:
                raise UnsupportedError(
                    f"deadline_ms={self.config.deadline_ms:g} (GRADFLOW_DEADLINE_MS) with {self.node_count}"
                    f" nodes: a result tells of at most {MOST_NODES}; use 0"
                )
            self._link = udp.connect(
                self.rank, self.nodes, MPI.Get_processor_name(), self.config, self.exchange
            )
        self.domain = self.engine.open(
            MPI._addressof(self._comm),
            self.rank,
            self.size,
            self._topology.nodes,
            self.config,
            self._topology.address,
            name,
            None if self._link is None else self._link.capsule,
        )
        self.closed = False
        self._places: dict[Any, Place] = {}
        self._sequence: dict[str, int] = {}
        self._under_way: dict[str, list] = {}
        self._left_behind: list[Any] = []  # under way when their names were forgotten
        self.residuals = Residuals()
        self.normalizer = Normalizer()
        self._joining: Handle | None = None
        self.prober = Prober(self)
        self.spared = 0.0  # bytes of matrices in whose place this rank sent factors
        self.streams: dict[str, Any] = {}
        self.recorder: Any = None  # of statistics of gradients; streams made from now on have it
        lifecycle.register(self)

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of each node."""
        return self._topology.nodes

    @property
    def node_count(self) -> int:
        """Number of nodes; with one, nothing is ever encoded."""
        return len(self._topology.nodes)

    @property
    def local_size(self) -> int:
        """Ranks on this rank's node."""
        return len(self._topology.node)

    @property
    def local_rank(self) -> int:
        """This rank's place in its node."""
        return self._topology.node.index(self.rank)

    def allreduce_async(
        self,
        array,
        name: str,
        *,
        op: str = "average",
        codec=None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        out=None,
    ) -> Handle:
        """Start the allreduce of one array.

        Parameters
        ----------
        array : array_like
            NumPy, torch CPU tensor or anything with DLPack or the buffer protocol; float32, float64,
            float16 or bfloat16; any shape and layout. It must stay as it is until `wait` has returned.
            One on a GPU must be contiguous; it is encoded there (docs/architecture.md, "Gradients on a
            device").
        name : str
            The same on all ranks; not under way already.
        op : {"average", "sum"}
        codec : str or Codec, optional
            Default: the reducer's.
        prescale, postscale : float
            Factors before and after the sum.
        out : array_like, optional
            Contiguous, of the same dtype and size, where `array` lies; may be `array`. Default: a new NumPy
            array.

        Returns
        -------
        Handle
            `wait` returns the result, of the shape and dtype of `array` (bfloat16 without `out`: uint16
            that holds its bits).
        """
        place = self.place_of(array)
        start = single.start if place is None else single_device.start_on(place)
        return start(
            self,
            array,
            name,
            op=op,
            codec=self.codec if codec is None else _codec(codec),
            prescale=prescale,
            postscale=postscale,
            out=out,
        )

    def place_of(self, array) -> Place | None:
        """Return the device on which an array is reduced, as this reducer uses it; None: on the host."""
        found = device_of(array, self.config.device)
        if found is None:
            return None
        if found not in self._places:
            self._places[found] = Place(self, found)
        return self._places[found]

    def allreduce(self, array, name: str, **options):
        """Reduce one array and wait; arguments as of :meth:`allreduce_async`."""
        return self.allreduce_async(array, name, **options).wait()

    def stream(self, specs, codec="none", **options):
        """Return a :class:`GradientStream` for the gradients of one optimizer; collective."""
        from hvd_gradflow.reduce.stream import GradientStream

        return GradientStream(self, specs, codec, **options)

    def submit(self, *, name, identity, codec, dtype, elements, source, target, factors, keep,
               residual=None, unchecked=False, backup=None, rescale=None, ends=(), finite=True,
               statistics=False, state=0, versions=1, device=None, split=0, deadline=0.0):  # fmt: skip
        """Hand one unit to the engine (used by streams); returns the engine's unit.

        `identity` is the manifest of its tensors and that text's digest; `state` a digest of whatever else
        all ranks must have alike. Where it is `unchecked`, on all ranks, nobody needs to know whether the
        input is `finite`: where a result is not, the residual becomes what it was, for which `backup` is
        room. Of one name `versions` may be under way; `rescale` is what the residual is multiplied with once
        those before this one have ended. With a `device` (:attr:`Pieces.native`) all of them are on it. With
        a `split` so many elements go first; the others let later units pass, and if their turn has not come
        after `deadline` seconds (0: they wait) all ranks get zeros for them and owe what they had.
        """
        codec = codec.carrier
        self.admit(name, codec, versions)
        if self.config.backend != "cpu" or not self.engine.has_codec(codec.wire_id):
            self.engine.add_codec(codec)
        spec = codec.spec()
        text, digested = identity
        sequence = self.steps_of(name)
        from hvd_gradflow.reduce import _engine as native

        flags = native.FLAG_ERROR_FEEDBACK if residual is not None else 0
        if unchecked:
            flags |= native.FLAG_UNCHECKED
        if statistics:
            flags |= native.FLAG_STATISTICS
        if getattr(codec, "stepped", False):
            flags |= native.FLAG_STEPPED
        unit = self.engine.submit(
            self.domain,
            name=name,
            manifest=text,
            name_hash=digest(name),
            digest=digested,
            sequence=sequence,
            spec=spec,
            elements=elements,
            dtype=dtype,
            flags=flags,
            state=state,
            node_scale=factors.node,
            home_scale=factors.home,
            post_scale=factors.post,
            source=source,
            target=target,
            residual=_address(residual),
            backup=_address(backup),
            rescale=_address(rescale),
            ends=list(ends),
            finite=finite,
            keep=(keep, residual, backup, rescale),
            device=device,
            split=split,
            deadline=deadline,
        )
        self._sequence[name] = sequence + 1
        self._under_way[name] = [*_unfinished(self._under_way.get(name, ())), unit]
        return unit

    def join_async(self) -> Handle:
        """Say that this rank has no more data: until all ranks have, it takes part with zeros.

        Nothing may be submitted before the handle was waited for; a second call returns the same one.
        """
        self._check_open()
        if self._joining is not None:
            return self._joining
        for stream in self.streams.values():
            stream.announce()
        unit = self.engine.join(self.domain)

        def collect(unit):
            self._joining = None
            # Ranks that joined early have counted fewer steps, and learned from fewer results.
            self._sequence.clear()
            self.residuals.in_gradient_units(self.normalizer)
            self.normalizer.restart()
            for stream in self.streams.values():
                stream.restart()
            return int(unit.value)

        self._joining = Handle(self.engine, unit, "join", collect)
        return self._joining

    def join(self, timeout: float | None = None) -> int:
        """Join and wait for all others; returns the last rank that joined."""
        return self.join_async().wait(timeout)

    def residual_state(self) -> dict[str, np.ndarray]:
        """Return what error feedback still owes, by name; collective.

        float32, in units of the average, summed over the ranks: it does not depend on their number.
        Names of a stream are prefixed by its scope and a slash.
        """
        self._check_idle()
        self.residuals.in_gradient_units(self.normalizer)
        state = self.residuals.total(self, self.residuals.sizes_everywhere(self))
        for scope, stream in sorted(self.streams.items()):
            state.update({f"{scope}/{name}": value for name, value in stream.residual_state().items()})
        return state

    def load_residual_state(self, state: dict[str, Any]) -> None:
        """Continue with what :meth:`residual_state` returned; collective, the same `state` on all ranks."""
        self._check_idle()
        for scope, stream in sorted(self.streams.items()):
            prefix = f"{scope}/"
            stream.load_residual_state(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )
        self.residuals.replace(
            {k: v for k, v in state.items() if not any(k.startswith(f"{s}/") for s in self.streams)},
            self.rank,
        )

    def exchange(self, value, what: str) -> list:
        """Give every rank the (JSON-able) values of all ranks, in order of rank; collective."""
        return exchange(self._comm, value, self.config.submit_timeout, what)

    def _check_idle(self) -> None:
        owing = self.residuals.sizes()
        busy = [n for n, units in self._under_way.items() if n in owing and _unfinished(units)]
        if busy:
            raise GradflowError(f"residuals while tensor {busy[0]!r} is under way: wait for it first")

    def counters(self) -> dict[str, int]:
        """Return counts of this rank since the start.

        ``wire_bytes`` handed to MPI for other nodes, headers and control messages counted;
        ``wire_bytes_uncompressed``, what the same exchange would have handed over without a codec (of
        matrices that were sent as factors, this rank's part of what all ranks would have);
        ``payloads``; ``units``; ``late``, those of which only the first part was sent; ``missed``, payloads
        of others that did not come in time; under ``udp_...`` what docs/udp.md tells; ``peak_under_way``,
        the most unacknowledged chunks to one peer. What a policy sent to measure the link is left out, and
        counted as ``probe_bytes``.
        """
        counts, probes = self.engine.traffic(self.domain), self.prober.traffic
        counts = {key: count - probes[key] for key, count in counts.items()}
        counts["wire_bytes_uncompressed"] += round(self.spared)
        link = {} if self._link is None else {f"udp_{k}": v for k, v in self._link.counters().items()}
        return {**counts, **link, "probe_bytes": probes["wire_bytes"]}

    @property
    def failure(self) -> str | None:
        """What this reducer failed of, or None."""
        error = self.engine.failure(self.domain)
        return None if error is None else str(error)

    def abort(self, reason: str) -> None:
        """Make every unfinished and later reduction fail with `reason`, on all ranks."""
        self.engine.fail(self.domain, reason)

    def admit(self, name: str, codec, versions: int = 1) -> None:
        """Refuse what cannot be submitted now, before anything has changed."""
        self._check_open()
        if self._joining is not None:
            raise GradflowError(f"tensor {name!r}: this rank has joined; wait for the join first")
        before = len(_unfinished(self._under_way.get(name, ())))
        if before >= versions:
            raise GradflowError(
                f"tensor {name!r} is already under way (step {self._sequence[name] - before}); "
                "wait for it first"
            )
        block, chunk = codec.spec()["block"], self.config.chunk_kib * 1024
        if 4 * block > chunk or codec.max_encoded_size(block) > chunk + chunk // 8:
            raise ConfigError(
                f"codec {codec!r}: a block of {block} elements does not fit into a chunk of "
                f"{self.config.chunk_kib} KiB (GRADFLOW_CHUNK_KIB)"
            )

    def steps_of(self, name: str) -> int:
        """Return how often a name was submitted; the same on all ranks."""
        return self._sequence.get(name, 0)

    def forget(self, names) -> None:
        """Drop what is kept about names that will not come again."""
        lifecycle.check_process()
        if self._joining is not None:
            return  # while others go on, this rank must know what they know
        self.engine.forget(self.domain, [digest(name) for name in names])
        self._left_behind = _unfinished(self._left_behind)
        for name in names:
            self._sequence.pop(name, None)
            # The engine works on their memory.
            self._left_behind += _unfinished(self._under_way.pop(name, ()))

    def _check_open(self) -> None:
        lifecycle.check_process()
        error = self.engine.failure(self.domain)
        if error is not None:
            raise error
        if self.closed:
            raise GradflowError(f"the reducer {self.name!r} is closed")

    def close(self, *, quiet: bool = False) -> None:
        """End this reducer; returns when all ranks have called it.

        As MPI_Finalize, it waits as long as the others live: they may have work of their own left.

        Raises
        ------
        PeerError
            A rank died or fell silent meanwhile.
        """
        if self.closed:
            return
        self.engine.close(self.domain)
        while not self.engine.wait_closed(self.domain, 0.2):
            pass
        error = self.engine.failure(self.domain)
        if error is not None and not quiet:
            raise error
        self.closed = error is None
        if self.closed and not quiet:
            # At exit other reducers may be closed in another order elsewhere: there the communicator stays.
            finish(self._comm.Ibarrier(), self.config.submit_timeout, f"closing the reducer {self.name!r}")
            self._comm.Free()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.close()


def _unfinished(units) -> list:
    return [unit for unit in units if not unit.final]


def _address(array) -> int:
    """Of an array on the host or on a device; 0 for none."""
    if array is None:
        return 0
    return array.ctypes.data if isinstance(array, np.ndarray) else array.address


def _codec(codec):
    codec = codecs.get(codec) if isinstance(codec, str) else codec
    return codecs.get("none") if factorizes(codec) else codec  # streams keep factors from step to step
