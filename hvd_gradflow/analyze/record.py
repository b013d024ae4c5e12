"""Records statistics of gradients in a training run, as they come in and before they are compressed.

A stream that has a recorder hands every gradient to :meth:`Recorder.take`. Nothing here is collective, and
nothing that goes wrong reaches the training: it is told once, and the recorder falls silent.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from hvd_gradflow import __version__, events
from hvd_gradflow.analyze.quality import candidates, examined
from hvd_gradflow.analyze.recording import VERSION
from hvd_gradflow.analyze.schedule import wanted
from hvd_gradflow.analyze.statistics import cosine, energy, sample
from hvd_gradflow.codec.registry import label
from hvd_gradflow.device import arrays
from hvd_gradflow.device.numpy_floats import from_bf16_bits

if TYPE_CHECKING:
    from hvd_gradflow.reduce import GradientStream, TensorSpec

SHARE = 0.05  # of the time, that statistics may take of a processor
ALWAYS = 3  # samples that are taken all the same: a short run has something to show
PER_LAYER, IN_ALL = 2**18, 2**22  # most elements that are looked at closely, of a layer and of a stream


class _Step:
    """One step of one stream, while its gradients come in."""

    def __init__(self, number: int, samples: bool, before: dict[str, np.ndarray]) -> None:
        self.number = number
        self.samples = samples  # whether its gradients are looked at closely
        self.before = before  # samples of the step before, to compare with
        self.local: dict[str, float] = {}
        self.reduced: dict[str, float] = {}
        self.kept: dict[str, np.ndarray] = {}
        self.cosines: dict[str, float | None] = {}


class _Stream:
    """What is known of one stream."""

    def __init__(self, number: int, stream: GradientStream) -> None:
        self.number = number
        self.names = [s.name for s in stream.specs]
        self.shapes = {s.name: s.shape for s in stream.specs}
        self.leads = stream.reducer.rank == 0
        self.counts: dict[str, int] = {}
        self.steps: dict[int, _Step] = {}
        self.last: tuple[int, dict[str, np.ndarray]] = (-2, {})  # the latest step whose samples are kept
        self.limit = max(2**12, min(PER_LAYER, IN_ALL // max(len(stream.specs), 1)))


class Recorder:
    """Writes what it sees to ``rankN.jsonl`` in a directory.

    Parameters
    ----------
    path : str
        The directory; made if it is missing.
    every : int
        Steps from one sample to the next; the step that follows each is looked at, too.
    rank : int
        Of this process in MPI's world; names the file.
    chunk : int
        Most elements of a payload.

    Raises
    ------
    OSError
        The file cannot be written.
    """

    def __init__(self, path: str, every: int, rank: int, chunk: int) -> None:
        directory = os.path.expanduser(path)
        os.makedirs(directory, exist_ok=True)
        self.path, self.every, self._chunk = directory, every, chunk
        # Unbuffered: what is refused is not tried again.
        self._file: Any = open(os.path.join(directory, f"rank{rank}.jsonl"), "ab", buffering=0)  # noqa: SIM115
        self._lock = threading.RLock()
        self._streams: WeakKeyDictionary[GradientStream, _Stream] = WeakKeyDictionary()
        self._codecs: Any = None
        self._began, self._spent, self._taken = time.perf_counter(), 0.0, 0
        self._opened = 0
        begins = {"version": VERSION, "started": time.time(), "rank": rank, "every": every}
        try:
            # On a line of its own: a run that was killed may have left half of one.
            self._file.write(b"\n")
            self._write(kind="run", **begins, package=__version__)
        except OSError:
            self.close()
            raise

    def take(
        self, stream: GradientStream, spec: TensorSpec, source: arrays.ArrayView
    ) -> Callable[[Any], None] | None:
        """Look at one gradient before it is reduced.

        Parameters
        ----------
        stream : GradientStream
        spec : TensorSpec
            Of the gradient.
        source : ArrayView
            Contiguous; on the host, or on the stream's device, from which it is copied if it is of use.

        Returns
        -------
        callable or None
            To be called with the reduced gradient, if that is of use.
        """
        if self._file is None:
            return None
        try:
            with self._lock:
                return self._take(stream, spec, source)
        except Exception as error:
            self._fail(error)
            return None

    def close(self) -> None:
        """Write no more."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _take(self, stream: Any, spec: Any, source: arrays.ArrayView) -> Callable[[Any], None] | None:
        known = self._known(stream)
        number = known.counts.get(spec.name, -1) + 1
        known.counts[spec.name] = number
        samples, follows = wanted(number, self.every)
        if not samples and not follows:
            return None
        started = time.thread_time()
        step = known.steps.get(number)
        if step is None:
            step = self._begin(known, stream, number, samples, follows)
        values = _floats(stream, source, spec.dtype)
        step.local[spec.name] = energy(values)
        if known.leads and (step.samples or spec.name in step.before):
            piece = sample(values, known.limit).astype(np.float32, copy=False)
            if step.samples:
                step.kept[spec.name] = piece
            if spec.name in step.before:
                step.cosines[spec.name] = _finite(cosine(piece, step.before.pop(spec.name)))
        self._spent += time.thread_time() - started
        if known.leads:
            return lambda result: self._reduced(known, stream, step, spec, result)
        self._end_if_complete(known, stream, step)
        return None

    def _known(self, stream: Any) -> _Stream:
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = _Stream(self._opened, stream)
            self._opened += 1
            self._write(
                kind="stream",
                stream=known.number,
                reducer=stream.reducer.name,
                scope=stream.scope,
                rank=stream.reducer.rank,
                ranks=stream.reducer.size,
                importance=stream.importance,
                layers=[[s.name, list(s.shape), s.kind, s.elements] for s in stream.specs],
                about={
                    "op": stream.op,
                    "max_staleness": stream.max_staleness,
                    "nodes": stream.reducer.node_count,
                    "min_elements": stream.reducer.config.min_elements,
                },
            )
        return known

    def _begin(self, known: _Stream, stream: Any, number: int, samples: bool, follows: bool) -> _Step:
        for old in [s for s in known.steps.values() if s.number < number - 1 - stream.max_staleness]:
            self._end(known, stream, old)  # some gradient was missing in it
        affordable = self._taken < ALWAYS or self._spent <= SHARE * (time.perf_counter() - self._began)
        samples = samples and known.leads and affordable
        if samples:
            self._taken += 1
        at, before = known.last
        step = _Step(number, samples, dict(before) if at == number - 1 and follows else {})
        known.last = (number, step.kept) if samples else (-2, {})
        known.steps[number] = step
        return step

    def _reduced(self, known: _Stream, stream: Any, step: _Step, spec: Any, result: Any) -> None:
        if self._file is None:
            return
        try:
            with self._lock:
                started = time.thread_time()
                scale = 1.0 / stream.reducer.size if stream.op == "sum" else 1.0
                values = _floats(stream, result, spec.dtype)
                step.reduced[spec.name] = energy(values) * scale**2
                self._end_if_complete(known, stream, step)
                self._spent += time.thread_time() - started
        except Exception as error:
            self._fail(error)

    def _end_if_complete(self, known: _Stream, stream: Any, step: _Step) -> None:
        layers = len(known.names)
        if len(step.local) == layers and (not known.leads or len(step.reduced) == layers):
            self._end(known, stream, step)

    def _end(self, known: _Stream, stream: Any, step: _Step) -> None:
        """Write what a step has."""
        if known.steps.pop(step.number, None) is not step:
            return  # written already, without what came late
        names = known.names
        place: dict[str, Any] = {"stream": known.number, "step": step.number}
        norms: dict[str, Any] = {"local": [_finite(step.local.get(n)) for n in names]}
        if known.leads:
            norms["reduced"] = [_finite(step.reduced.get(n)) for n in names]
        self._write(kind="norms", **place, **norms)
        if step.cosines:
            self._write(kind="next", **place, cosines=step.cosines)
        if step.kept:
            if self._codecs is None:
                self._codecs = candidates()
            in_use = stream.codecs()
            layers = {n: self._layer(x, known.shapes[n], label(in_use[n])) for n, x in step.kept.items()}
            self._write(kind="layers", **place, layers=layers)

    def _layer(self, x: np.ndarray, shape: tuple[int, ...], codec: str) -> dict[str, Any]:
        whole = shape if x.size == math.prod(shape) else None
        return {**examined(x, self._codecs, self._chunk, whole), "codec": codec}

    def _write(self, **line: Any) -> None:
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        if self._file.write(text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _fail(self, error: Exception) -> None:
        self.close()
        self._streams.clear()
        _tell(self.path, error)


@functools.cache
def of_process(path: str, every: int, chunk_kib: int) -> Recorder | None:
    """Return the recorder that the environment asks for, one for the process; as :func:`start`."""
    return start(path, every, chunk_kib)


def start(path: str, every: int, chunk_kib: int) -> Recorder | None:
    """Return a recorder, or None, with a warning, where nothing can be written."""
    from mpi4py import MPI

    try:
        return Recorder(path, every, MPI.COMM_WORLD.rank, chunk_kib * 256)
    except OSError as error:
        _tell(path, error)
        return None


def _tell(path: str, error: Exception) -> None:
    words = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    events.warn("gradients are not recorded in %s from here on (%s); the training goes on", path, words)


def _floats(stream: Any, array: Any, dtype: str) -> np.ndarray:
    """A gradient or a result of a stream, on the host, in one dimension."""
    bits = isinstance(array, np.ndarray) and array.dtype == np.uint16
    values = (array if bits else stream.on_host(array).numpy()).reshape(-1)
    return from_bf16_bits(values) if dtype == "bfloat16" else values


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
