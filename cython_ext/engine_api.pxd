# The C++ of engine/, as _engine.pyx sees it.
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from codec_api cimport gf_codec_spec, gf_segment


cdef extern from "mpi.h" nogil:
    ctypedef void *MPI_Comm


cdef extern from "gf_api.h" nogil:
    ctypedef struct gf_codec_ops:
        void *ctx
        size_t (*max_encoded_size)(void *, const gf_codec_spec *, size_t) noexcept nogil
        size_t (*encode)(void *, const gf_codec_spec *, const float *, float *, size_t, uint64_t, uint64_t,
                         uint8_t *) noexcept nogil
        int (*decode)(void *, const gf_codec_spec *, const uint8_t *, size_t, float *, size_t) noexcept nogil
        int (*decode_add)(void *, const gf_codec_spec *, const uint8_t *, size_t, float *,
                          size_t) noexcept nogil
        size_t (*encode_stepped)(void *, const gf_codec_spec *, const gf_segment *, size_t, const float *,
                                 float *, size_t, uint8_t *) noexcept nogil
        int (*add_codes)(void *, const gf_codec_spec *, const gf_segment *, size_t, const uint8_t *, size_t,
                         float *, size_t) noexcept nogil
        size_t (*encode_codes)(void *, const gf_codec_spec *, const gf_segment *, size_t, const float *,
                               size_t, uint8_t *) noexcept nogil
        void (*sum_spec)(void *, const gf_codec_spec *, gf_codec_spec *) noexcept nogil

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


cdef extern from "../cuda/gpu_api.h" nogil:
    ctypedef struct gf_gpu_api:
        int version


cdef extern from "comm/transport.hpp" namespace "gf" nogil:
    cdef cppclass Transport:
        pass


cdef extern from "engine/mpi_transport.hpp" namespace "gf" nogil:
    cdef cppclass MpiTransport(Transport):
        MpiTransport(MPI_Comm)


cdef extern from "engine/mpi_use.hpp" namespace "gf" nogil:
    cdef cppclass MpiUse:
        @staticmethod
        MpiUse &of_process()
        void begin()
        void end()
        cbool enter()
        void leave()


cdef extern from "engine/engine.hpp" namespace "gf" nogil:
    cdef cppclass Atomic "std::atomic<uint64_t>":
        uint64_t load()

    cdef cppclass AtomicDouble "std::atomic<double>":
        double load()

    cdef struct Energy:
        double gradient
        double residual
        double total

    cdef struct Statistics:
        vector[Energy] energies
        uint64_t bytes

    cdef struct UnitSpec:
        uint64_t name_hash
        uint64_t sequence
        uint64_t elements
        gf_codec_spec codec
        uint32_t dtype
        uint32_t flags
        uint64_t state
        double node_scale
        double home_scale
        double post_scale
        uint64_t split
        double deadline

    cdef struct Options:
        size_t chunk_bytes
        int window
        size_t eager_bytes
        int slots
        double submit_warn
        double submit_timeout
        double progress_timeout
        double deadline

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
        float *backup
        const float *rescale
        vector[uint64_t] ends
        cbool finite
        cbool join
        const gf_gpu_api *gpu
        int device
        void *gathered
        const int32_t *gathered_finite
        double started
        double ended
        int64_t value
        string error
        Statistics statistics

    cdef cppclass Traffic:
        Atomic wire
        Atomic uncompressed
        Atomic payloads
        Atomic peak_under_way
        Atomic units
        Atomic late
        Atomic missed
        AtomicDouble loose_energy
        AtomicDouble missed_energy

    cdef cppclass Failure "gf::Failure":
        Failure()
    cdef cppclass DomainState "gf::DomainState":
        pass
    cdef cppclass Engine "gf::Engine":
        Engine(const gf_api *) except +
        void add_codec(uint16_t, const gf_codec_ops &)
        string next_warning(double)
        cbool stopped()
        int open(MPI_Comm, Transport *, const Topology &, const Options &, void *, const string &) except +
        void submit(int, const shared_ptr[Unit] &)
        void forget(int, vector[uint64_t])
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
    static int gf_domain_error(gf::Engine *engine, int domain, std::string *text) {
      gf::Failure kind;
      *text = engine->error(domain, &kind);
      return static_cast<int>(kind);
    }
    static MPI_Comm gf_comm_at(uintptr_t address) { return *reinterpret_cast<MPI_Comm *>(address); }
    static size_t gf_shared_bytes(int ranks, int slots, size_t chunk) {
      return gf::Shared::bytes(ranks, slots, chunk);
    }
    """
    int gf_unit_state(const Unit *) nogil
    int gf_unit_failure(const Unit *) nogil
    int gf_domain_error(Engine *, int, string *) nogil
    MPI_Comm gf_comm_at(uintptr_t) nogil
    size_t gf_shared_bytes(int, int, size_t) nogil
