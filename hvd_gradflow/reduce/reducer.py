"""Reducer: allreduce over one communicator, compressed between its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow import codec as codecs
from hvd_gradflow import config as configuration
from hvd_gradflow.errors import GradflowError
from hvd_gradflow.reduce import lifecycle, saving, single, single_device
from hvd_gradflow.reduce.group import Group, require_threads
from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.layout import factorizes
from hvd_gradflow.reduce.normalizer import Normalizer
from hvd_gradflow.reduce.place import Place, check_setting, device_of
from hvd_gradflow.reduce.probe import Prober
from hvd_gradflow.reduce.residuals import Residuals
from hvd_gradflow.reduce.submissions import Submissions


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
        lifecycle.require_mpi()
        require_threads()
        asked = configuration.load() if config is None else config
        check_setting(asked.device)
        self.name = name
        self.codec = _codec(codec)
        self.engine = lifecycle.engine()
        self._group = group = Group(comm, asked, name)
        self.config, self.rank, self.size = group.config, group.comm.rank, group.comm.size
        self.domain = group.open_in(self.engine)
        self.closed = False
        self._places: dict[Any, Place] = {}
        self.submissions = Submissions(self.engine, self.domain, self.config)
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
        return self._group.nodes

    @property
    def node_count(self) -> int:
        """Number of nodes; with one, nothing is ever encoded."""
        return len(self._group.nodes)

    @property
    def local_size(self) -> int:
        """Ranks on this rank's node."""
        return len(self._group.node)

    @property
    def local_rank(self) -> int:
        """This rank's place in its node."""
        return self._group.node.index(self.rank)

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

    def submit(self, *, name: str, codec, versions: int = 1, **terms):
        """Hand one unit to the engine (used by streams), after :meth:`admit`: see :class:`Submissions`."""
        self.admit(name, codec.carrier, versions)
        return self.submissions.submit(name=name, codec=codec, versions=versions, **terms)

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
            self.submissions.restart()
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
        return saving.state_of(self)

    def load_residual_state(self, state: dict[str, Any]) -> None:
        """Continue with what :meth:`residual_state` returned; collective, the same `state` on all ranks."""
        saving.load(self, state)

    def exchange(self, value, what: str) -> list:
        """Give every rank the (JSON-able) values of all ranks, in order of rank; collective."""
        return self._group.exchange(value, what)

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
        link = {} if self._group.link is None else self._group.link.counters()
        link = {f"udp_{key}": count for key, count in link.items()}
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
        self.submissions.admit(name, codec, versions)

    def steps_of(self, name: str) -> int:
        """Return how often a name was submitted; the same on all ranks."""
        return self.submissions.steps_of(name)

    def forget(self, names) -> None:
        """Drop what is kept about names that will not come again."""
        lifecycle.check_process()
        if self._joining is not None:
            return  # while others go on, this rank must know what they know
        self.submissions.forget(names)

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
            self._group.leave()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.close()


def _codec(codec):
    codec = codecs.get(codec) if isinstance(codec, str) else codec
    return codecs.get("none") if factorizes(codec) else codec  # streams keep factors from step to step
