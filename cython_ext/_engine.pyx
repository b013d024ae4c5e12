"""The reduction engine, as Python sees it: units go in, finished units come out.

Everything that runs per chunk is in ``engine/*.cpp``, on a thread that never takes the interpreter lock,
except to call a codec that exists in Python only.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport PyObject, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, make_shared
from libcpp.string cimport string
from libcpp.vector cimport vector

import numpy as np

from hvd_gradflow import errors


cdef extern from "mpi.h" nogil:
    ctypedef void *MPI_Comm


cdef extern from "gf_api.h" nogil:
    ctypedef struct gf_codec_spec:
        uint16_t id
        uint8_t bits
        uint8_t rounding
        uint32_t block
        uint64_t seed
        uint64_t params[2]

    ctypedef struct gf_codec_ops:
        void *ctx
        size_t (*max_encoded_size)(void *, const gf_codec_spec *, size_t) noexcept nogil
        size_t (*encode)(void *, const gf_codec_spec *, const float *, float *, size_t, uint64_t, uint64_t,
                         uint8_t *) noexcept nogil
        int (*decode)(void *, const gf_codec_spec *, const uint8_t *, size_t, float *, size_t) noexcept nogil
        int (*decode_add)(void *, const gf_codec_spec *, const uint8_t *, size_t, float *, size_t) noexcept nogil

    ctypedef struct gf_api:
        int version
        const gf_codec_ops *(*find_codec)(uint16_t id) noexcept nogil
        int (*load_f32)(const void *, int, float *, size_t) noexcept nogil
        void (*store_f32)(const float *, float, void *, int, size_t) noexcept nogil
    int GF_API_VERSION
    const char *GF_API_CAPSULE
    int GF_WIRE_OK
    int GF_WIRE_CONTENT
    int GF_WIRE_COUNT


cdef extern from "engine/engine.hpp" namespace "gf" nogil:
    cdef cppclass Atomic "std::atomic<uint64_t>":
        uint64_t load()

    cdef struct Energy:
        double gradient
        double residual

    cdef struct UnitSpec:
        uint64_t name_hash
        uint64_t sequence
        uint64_t elements
        gf_codec_spec codec
        uint32_t dtype
        uint32_t flags
        double node_scale
        double home_scale
        double post_scale

    cdef struct Options:
        size_t chunk_bytes
        int window
        int slots
        double submit_warn
        double submit_timeout
        double progress_timeout

    cdef cppclass Topology:
        int rank
        int size
        vector[vector[int]] nodes

    cdef cppclass Unit:
        string name
        string manifest
        uint64_t digest
        UnitSpec spec
        const void *input
        void *output
        float *residual
        vector[uint64_t] ends
        cbool finite
        cbool join
        int64_t value
        string error
        vector[Energy] energies

    cdef cppclass Traffic:
        Atomic wire
        Atomic uncompressed
        Atomic payloads
        Atomic peak_under_way
        Atomic units

    int failure_of "static_cast<int>" (...)
    cdef cppclass Failure "gf::Failure":
        Failure()
    cdef cppclass DomainState "gf::DomainState":
        pass
    cdef cppclass Engine "gf::Engine":
        Engine(const gf_api *) except +
        void add_codec(uint16_t, const gf_codec_ops &)
        void on_warning(void (*)(const char *) noexcept nogil)
        int open(MPI_Comm, const Topology &, const Options &, void *, const string &) except +
        void submit(int, const shared_ptr[Unit] &)
        void close(int)
        void fail(int, const string &)
        DomainState state(int)
        string error(int, Failure *)
        const Traffic &traffic(int)
        cbool wait(const shared_ptr[Unit] &, double)
        cbool wait_closed(int, double)
        void stop()


cdef extern from *:
    """
    #include "engine/engine.hpp"
    static int gf_unit_state(const gf::Unit *unit) { return static_cast<int>(unit->state.load()); }
    static int gf_unit_failure(const gf::Unit *unit) { return static_cast<int>(unit->failure); }
    static int gf_domain_state(gf::Engine *engine, int domain) { return static_cast<int>(engine->state(domain)); }
    static int gf_domain_error(gf::Engine *engine, int domain, std::string *text) {
      gf::Failure kind;
      *text = engine->error(domain, &kind);
      return static_cast<int>(kind);
    }
    static MPI_Comm gf_comm_at(uintptr_t address) { return *reinterpret_cast<MPI_Comm *>(address); }
    static size_t gf_shared_bytes(int ranks, int slots, size_t chunk) { return gf::Shared::bytes(ranks, slots, chunk); }
    """
    int gf_unit_state(const Unit *) nogil
    int gf_unit_failure(const Unit *) nogil
    int gf_domain_state(Engine *, int) nogil
    int gf_domain_error(Engine *, int, string *) nogil
    MPI_Comm gf_comm_at(uintptr_t) nogil
    size_t gf_shared_bytes(int, int, size_t) nogil


FLAG_STATISTICS = 2
FLAG_ERROR_FEEDBACK = 4
OPEN, CLOSING, CLOSED, FAILED = range(4)

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


# -- codecs that exist in Python only ---------------------------------------------------------------

cdef object _floats(const float *data, size_t n):
    return np.asarray(<float[:n]> <float *> data) if n else np.zeros(0, np.float32)


cdef object _codec(void *ctx, const gf_codec_spec *spec):
    return (<dict> ctx)[_key(spec.id, spec.bits, spec.rounding, spec.block, spec.seed, spec.params[0], spec.params[1])]


def _key(*fields):
    return fields


cdef size_t _max_encoded_size(void *ctx, const gf_codec_spec *spec, size_t n) noexcept with gil:
    try:
        return _codec(ctx, spec).max_encoded_size(n)
    except BaseException as error:
        _report(error)
        return 0


cdef size_t _encode(void *ctx, const gf_codec_spec *spec, const float *x, float *residual, size_t n, uint64_t key,
                    uint64_t first, uint8_t *out) noexcept with gil:
    cdef const uint8_t[::1] payload
    try:
        codec = _codec(ctx, spec)
        payload = codec.encode(_floats(x, n), residual=_floats(residual, n) if residual != NULL else None,
                               key=key, first=first)
        if <size_t> payload.shape[0] > <size_t> codec.max_encoded_size(n):
            raise errors.WireError(f"codec {codec.name!r} made {payload.shape[0]} bytes of {n} elements, "
                                   f"more than its own bound {codec.max_encoded_size(n)}")
        memcpy(out, &payload[0], payload.shape[0])
        return payload.shape[0]
    except BaseException as error:
        _report(error)
        return 0


cdef int _decode(void *ctx, const gf_codec_spec *spec, const uint8_t *data, size_t size, float *out,
                 size_t n) noexcept with gil:
    try:
        result = _codec(ctx, spec).decode(np.asarray(<const uint8_t[:size]> <uint8_t *> data))
        if result.size != n:
            return GF_WIRE_COUNT
        if n:
            _floats(out, n)[:] = result
        return GF_WIRE_OK
    except BaseException as error:
        _report(error)
        return GF_WIRE_CONTENT


cdef int _decode_add(void *ctx, const gf_codec_spec *spec, const uint8_t *data, size_t size, float *acc,
                     size_t n) noexcept with gil:
    try:
        _codec(ctx, spec).decode_add(np.asarray(<const uint8_t[:size]> <uint8_t *> data), _floats(acc, n))
        return GF_WIRE_OK
    except BaseException as error:
        _report(error)
        return GF_WIRE_CONTENT


cdef void _report(error) noexcept:
    _warn_text(f"a codec written in Python failed: {type(error).__name__}: {error}")


_on_warning = []


def _warn_text(text):
    for callback in _on_warning:
        callback(text)


cdef void _warned(const char *text) noexcept with gil:
    try:
        _warn_text(text.decode("utf-8", "replace"))
    except BaseException:
        return  # a warning must not end the engine's thread


# -- units and the engine -----------------------------------------------------------------------------

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
        """Pairs (gradient, residual) of sums of squares, one for each tensor."""
        return [(e.gradient, e.residual) for e in self.unit.get().energies]


cdef class NativeEngine:
    """The background thread of this process."""

    cdef Engine *engine
    cdef const gf_api *api
    cdef dict codecs

    def __cinit__(self, capsule, warn):
        self.api = <const gf_api *> PyCapsule_GetPointer(capsule, GF_API_CAPSULE)
        if self.api.version != GF_API_VERSION:
            raise ImportError(f"kernels have interface {self.api.version}, the engine expects {GF_API_VERSION}; "
                              "run `make build`")
        self.engine = new Engine(self.api)
        self.codecs = {}
        _on_warning[:] = [warn]
        self.engine.on_warning(_warned)

    def __dealloc__(self):
        if self.engine != NULL:
            with nogil:
                self.engine.stop()
            del self.engine
            self.engine = NULL

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
        self.engine.add_codec(spec["id"], ops)

    def has_codec(self, int wire_id):
        """True if the compiled kernels know a codec."""
        return self.api.find_codec(wire_id) != NULL

    def load(self, uintptr_t source, int dtype, uintptr_t target, size_t n):
        """Copy n elements of any gradient dtype to float32; True if all are finite."""
        cdef int finite
        with nogil:
            finite = self.api.load_f32(<const void *> source, dtype, <float *> target, n)
        return finite != 0

    def store(self, uintptr_t source, uintptr_t target, int dtype, size_t n):
        """Copy n elements of float32 to any gradient dtype, rounded to nearest even."""
        with nogil:
            self.api.store_f32(<const float *> source, 1.0, <void *> target, dtype, n)

    def open(self, uintptr_t comm, int rank, int size, nodes, options, uintptr_t shared, name):
        """Serve one more communicator; ``comm`` is the address of an MPI_Comm of the engine's own."""
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
        o.slots = options.shm_slots
        o.submit_warn = options.submit_warn
        o.submit_timeout = options.submit_timeout
        o.progress_timeout = options.progress_timeout
        return self.engine.open(handle, topology, o, <void *> shared, text)

    def submit(self, int domain, *, str name, str manifest, uint64_t name_hash, uint64_t digest, uint64_t sequence,
               spec, uint64_t elements, int dtype, uint32_t flags, double node_scale, double home_scale,
               double post_scale, uintptr_t source, uintptr_t target, uintptr_t residual, ends, bint finite, keep):
        """Hand over one unit; ``spec`` is a codec's ``spec()``, addresses are those of whole buffers."""
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
        u.spec.codec.id = spec["id"]
        u.spec.codec.bits = spec["bits"]
        u.spec.codec.rounding = spec["rounding"]
        u.spec.codec.block = spec["block"]
        u.spec.codec.seed = spec["seed"]
        u.spec.codec.params[0], u.spec.codec.params[1] = spec["params"]
        u.spec.dtype = dtype
        u.spec.flags = flags
        u.spec.node_scale = node_scale
        u.spec.home_scale = home_scale
        u.spec.post_scale = post_scale
        u.input = <const void *> source
        u.output = <void *> target
        u.residual = <float *> residual
        for end in ends:
            u.ends.push_back(end)
        u.finite = finite
        with nogil:
            self.engine.submit(domain, native.unit)
        return native

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
        cdef double left = -1 if timeout is None else timeout
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

    def state(self, int domain):
        """OPEN, CLOSING, CLOSED or FAILED."""
        return gf_domain_state(self.engine, domain)

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
        }

    def stop(self):
        """End the thread, whatever is under way."""
        with nogil:
            self.engine.stop()
