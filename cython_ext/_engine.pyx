"""The reduction engine, as Python sees it: units go in, finished units come out.

Everything that runs per chunk is in ``engine/*.cpp``, on a thread that never takes the interpreter lock,
except to call a codec that exists in Python only.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from posix.unistd cimport getpid
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from codec_api cimport gf_codec_spec, gf_segment, spec_of
from engine_api cimport (
    GF_API_CAPSULE,
    GF_API_VERSION,
    GF_WIRE_CONTENT,
    GF_WIRE_COUNT,
    GF_WIRE_OK,
    Engine,
    MPI_Comm,
    MpiTransport,
    MpiUse,
    Options,
    Topology,
    Traffic,
    Transport,
    Unit,
    gf_api,
    gf_codec_ops,
    gf_comm_at,
    gf_domain_error,
    gf_gpu_api,
    gf_shared_bytes,
    gf_unit_failure,
    gf_unit_state,
)

import numpy as np

from hvd_gradflow import errors, events

FLAG_STATISTICS = 2
FLAG_ERROR_FEEDBACK = 4
FLAG_STEPPED = 8
FLAG_UNCHECKED = 16

_ERRORS = {
    1: errors.MismatchError,
    2: errors.PeerError,
    3: errors.WireError,
    4: errors.GradflowError,
}


def shared_bytes(int ranks, int slots, size_t chunk_bytes):
    """Bytes of the file that the ranks of one node share."""
    return gf_shared_bytes(ranks, slots, chunk_bytes)


def error_of(int kind, text):
    """The exception for a failure of the engine."""
    return _ERRORS.get(kind, errors.GradflowError)(text)


def mpi_transport(uintptr_t comm):
    """Return the capsule of a transport by MPI over a communicator of its own; it stays for good."""
    cdef MpiTransport *transport = new MpiTransport(gf_comm_at(comm))
    return PyCapsule_New(<void *> <Transport *> transport, "hvd_gradflow.transport", NULL)


include "python_codecs.pxi"


cdef class NativeUnit:
    """A unit handed to the engine; keeps alive what the engine reads and writes."""

    cdef shared_ptr[Unit] unit
    cdef object keep

    @property
    def final(self):
        """True once it is done or has failed."""
        return gf_unit_state(self.unit.get()) >= 2

    @property
    def running(self):
        """True once all ranks have submitted it."""
        return gf_unit_state(self.unit.get()) >= 1

    @property
    def exception(self):
        """The error it ended in, or None."""
        if gf_unit_state(self.unit.get()) != 3:
            return None
        return error_of(gf_unit_failure(self.unit.get()), self.unit.get().error.decode("utf-8", "replace"))

    @property
    def finite(self):
        """False once it is known that some rank's input was not finite."""
        return self.unit.get().finite

    @property
    def value(self):
        """What a join returns: the last rank that joined."""
        return self.unit.get().value

    def release(self):
        """Let go of the buffers; only once it is final."""
        self.keep = None

    def energies(self):
        """Triples (gradient, residual, total) of sums of squares, one for each tensor.

        Of what was encoded, of what that lost, and of the reduced gradient.
        """
        return [(e.gradient, e.residual, e.total) for e in self.unit.get().statistics.energies]

    @property
    def interval(self):
        """When all ranks had submitted it and when it ended here, in seconds of one clock; once final."""
        return self.unit.get().started, self.unit.get().ended

    @property
    def payload_bytes(self):
        """Bytes of all payloads of all ranks for it; 0 where nothing was measured."""
        return self.unit.get().statistics.bytes


cdef class MpiCalls:
    """For calls of MPI by other threads than the engine's: MPI is not finalized between them.

    ``with MpiCalls() as call: call(request.Test)``. Whoever finalizes MPI waits some seconds for the end of
    the block. After that, and where MPI is over, a call raises PeerError.
    """

    def __enter__(self):
        MpiUse.of_process().begin()
        return self

    def __exit__(self, *error):
        MpiUse.of_process().end()

    def __call__(self, function, *arguments):
        if not MpiUse.of_process().enter():
            raise error_of(2, "MPI was finalized: another rank has ended, or hvd.shutdown() was called")
        try:
            return function(*arguments)
        finally:
            MpiUse.of_process().leave()


cdef class NativeEngine:
    """The background thread of this process."""

    cdef Engine *engine
    cdef const gf_api *api
    cdef dict codecs
    cdef int pid

    def __cinit__(self, capsule):
        self.api = <const gf_api *> PyCapsule_GetPointer(capsule, GF_API_CAPSULE)
        if self.api.version != GF_API_VERSION:
            raise ImportError(f"kernels have interface {self.api.version}, the engine expects "
                              f"{GF_API_VERSION}; run `make build`")
        self.engine = new Engine(self.api)
        self.codecs = {}
        self.pid = getpid()

    def __dealloc__(self):
        # The C++ object stays: MPI_Finalize, which may come after the interpreter's end, calls it once more.
        # After a fork its thread is not there to be waited for.
        if self.engine != NULL and self.pid == getpid():
            with nogil:
                self.engine.stop()

    def add_codec(self, codec):
        """Let units use a codec that is written in Python, found by its spec."""
        cdef gf_codec_ops ops
        spec = codec.spec()
        key = _key(spec["id"], spec["bits"], spec["rounding"], spec["block"], spec["seed"], *spec["params"])
        if key in self.codecs:
            return
        self.codecs[key] = codec
        ops.ctx = <void *> self.codecs
        ops.max_encoded_size = _max_encoded_size
        ops.encode = _encode
        ops.decode = _decode
        ops.decode_add = _decode_add
        ops.encode_stepped = _encode_stepped
        ops.add_codes = _add_codes
        ops.encode_codes = _encode_codes
        sums = codec.for_sums()
        ops.sum_spec = NULL
        if sums is not None:
            ops.sum_spec = _sum_spec
            self.add_codec(sums)
        self.engine.add_codec(spec["id"], ops)

    def has_codec(self, int wire_id):
        """True if the compiled kernels know a codec."""
        return self.api.find_codec(wire_id) != NULL

    def load(self, uintptr_t source, int dtype, uintptr_t target, size_t n):
        """Copy n elements of any gradient dtype to float32; True if all are finite.

        For float32 the target may be 0: then it only looks.
        """
        cdef int finite
        with nogil:
            finite = self.api.load_f32(<const void *> source, dtype, <float *> target, n)
        return finite != 0

    def store(self, uintptr_t source, uintptr_t target, int dtype, size_t n):
        """Copy n elements of float32 to any gradient dtype, rounded to nearest even."""
        with nogil:
            self.api.store_f32(<const float *> source, 1.0, <void *> target, dtype, n)

    def open(self, uintptr_t comm, int rank, int size, nodes, options, uintptr_t shared, name, between=None):
        """Serve one more communicator; ``comm`` is the address of an MPI_Comm of the engine's own.

        ``between``: who carries messages between nodes (the ``capsule`` of a transport in
        ``hvd_gradflow.comm``), which must stay for as long as the process; without it, MPI.
        """
        cdef Transport *carrier = NULL
        if between is not None:
            carrier = <Transport *> PyCapsule_GetPointer(between, "hvd_gradflow.transport")
        cdef Topology topology
        cdef Options o
        cdef vector[int] members
        cdef string text = name.encode()
        cdef MPI_Comm handle = gf_comm_at(comm)
        topology.rank = rank
        topology.size = size
        for node in nodes:
            members.clear()
            for member in node:
                members.push_back(member)
            topology.nodes.push_back(members)
        o.chunk_bytes = options.chunk_kib * 1024
        o.window = options.window
        o.eager_bytes = options.eager_kib * 1024
        o.slots = options.shm_slots
        o.submit_warn = options.submit_warn
        o.submit_timeout = options.submit_timeout
        o.progress_timeout = options.progress_timeout
        o.deadline = options.deadline_ms * 1e-3
        return self.engine.open(handle, carrier, topology, o, <void *> shared, text)

    def submit(self, int domain, *, str name, str manifest, uint64_t name_hash, uint64_t digest,
               uint64_t sequence, spec, uint64_t elements, int dtype, uint32_t flags, uint64_t state,
               double node_scale,
               double home_scale, double post_scale, uintptr_t source, uintptr_t target,
               uintptr_t residual, uintptr_t backup, uintptr_t rescale, ends, bint finite, keep,
               device=None, uint64_t split=0, double deadline=0.0):
        """Hand over one unit; ``spec`` is a codec's ``spec()``, addresses are those of whole buffers.

        ``device``: where they are a device's, the address of its gf_gpu_api, its index, the handle of the
        event behind which the input is complete, and the address (on the host) of an int32 that is then 0 if
        some element is not finite, or 0. With a ``split`` that
        many elements go first, and the others may wait, for ``deadline`` seconds (0: for ever).
        """
        cdef NativeUnit native = NativeUnit()
        cdef Unit *u
        native.unit = make_shared[Unit]()
        native.keep = keep
        u = native.unit.get()
        u.name = name.encode()
        u.manifest = manifest.encode()
        u.digest = digest
        u.spec.name_hash = name_hash
        u.spec.sequence = sequence
        u.spec.elements = elements
        u.spec.codec = spec_of(spec)
        u.spec.dtype = dtype
        u.spec.flags = flags
        u.spec.state = state
        u.spec.node_scale = node_scale
        u.spec.home_scale = home_scale
        u.spec.post_scale = post_scale
        u.spec.split = split
        u.spec.deadline = deadline
        u.input = <const void *> source
        u.output = <void *> target
        u.residual = <float *> residual
        u.backup = <float *> backup
        u.rescale = <const float *> rescale
        for end in ends:
            u.ends.push_back(end)
        u.finite = finite
        if device is not None:
            u.gpu = <const gf_gpu_api *> <uintptr_t> device[0]
            u.device = device[1]
            u.gathered = <void *> <uintptr_t> device[2]
            u.gathered_finite = <const int32_t *> <uintptr_t> device[3]
        with nogil:
            self.engine.submit(domain, native.unit)
        return native

    def forget(self, int domain, hashes):
        """Drop what is kept about names that will not come again, or that begin anew."""
        cdef vector[uint64_t] names
        for name in hashes:
            names.push_back(name)
        with nogil:
            self.engine.forget(domain, names)

    def join(self, int domain):
        """Tell the others that this rank has no more data; the unit ends when all have said so."""
        cdef NativeUnit native = NativeUnit()
        native.unit = make_shared[Unit]()
        native.unit.get().join = True
        native.unit.get().name = b"join"
        with nogil:
            self.engine.submit(domain, native.unit)
        return native

    def wait(self, NativeUnit unit, timeout=None):
        """Wait until a unit is final; False if the time (seconds) ran out. Ctrl-C works."""
        cdef double left = -1 if timeout is None else max(0.0, timeout)
        cdef double part
        cdef cbool final = False
        while True:
            part = 0.1 if left < 0 or left > 0.1 else left
            with nogil:
                final = self.engine.wait(unit.unit, part)
            if final:
                return True
            PyErr_CheckSignals()
            if left >= 0:
                left -= part
                if left <= 0:
                    return False

    def close(self, int domain):
        """Begin to close a domain; it closes once all its ranks did."""
        with nogil:
            self.engine.close(domain)

    def fail(self, int domain, text):
        """Make a domain fail on all ranks."""
        cdef string t = text.encode()
        with nogil:
            self.engine.fail(domain, t)

    def wait_closed(self, int domain, double seconds):
        """True once a domain is closed, or has failed and told the others."""
        cdef cbool closed
        with nogil:
            closed = self.engine.wait_closed(domain, seconds)
        PyErr_CheckSignals()
        return closed

    def failure(self, int domain):
        """The exception that a domain failed with, or None."""
        cdef string text
        cdef int kind = gf_domain_error(self.engine, domain, &text)
        return error_of(kind, text.decode("utf-8", "replace")) if kind else None

    def traffic(self, int domain):
        """Counters of what this rank handed to MPI for other nodes."""
        cdef const Traffic *t = &self.engine.traffic(domain)
        return {
            "wire_bytes": t.wire.load(),
            "wire_bytes_uncompressed": t.uncompressed.load(),
            "payloads": t.payloads.load(),
            "peak_under_way": t.peak_under_way.load(),
            "units": t.units.load(),
            "late": t.late.load(),
            "missed": t.missed.load(),
            "loose_energy": t.loose_energy.load(),
            "missed_energy": t.missed_energy.load(),
        }

    def warnings(self):
        """Yield the engine's warnings until it stops; blocks without the interpreter lock."""
        cdef string text
        while not self.engine.stopped():
            with nogil:
                text = self.engine.next_warning(1.0)
            if not text.empty():
                yield text.decode("utf-8", "replace")

    def stop(self):
        """End the thread, whatever is under way."""
        with nogil:
            self.engine.stop()
