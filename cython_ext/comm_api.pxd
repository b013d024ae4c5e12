# The C++ of comm/, as _transports.pyx sees it.
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from *:
    """
    #include <Python.h>
    #include "comm/transport.hpp"
    // Called while the exception is handled, with the interpreter's lock.
    static void raise_transport() {
      try {
        throw;
      } catch (const gf::TransportError &e) {
        PyErr_SetString(PyExc_ConnectionError, e.text.c_str());
      } catch (const std::exception &e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
      }
    }
    """
    void raise_transport()


cdef extern from "comm/transport.hpp" namespace "gf" nogil:
    cdef cppclass Transport:
        uint32_t send(int, int, const uint8_t *, size_t, double) except +raise_transport
        cbool done(uint32_t) except +raise_transport
        void post(int, int, uint8_t *, size_t) except +raise_transport
        cbool take(int, int, size_t *, double) except +raise_transport
        cbool take_control(int *, vector[uint8_t] *) except +raise_transport
        cbool progress() except +raise_transport
        cbool busy()
        void close() except +raise_transport


cdef extern from "comm/aead.hpp" namespace "gf" nogil:
    cdef cppclass Aead:
        @staticmethod
        string load(const string &)


cdef extern from "comm/guard.hpp" namespace "gf" nogil:
    cdef struct Weighed:
        double weight
        size_t bytes

    cdef struct GuardPlan:
        vector[cbool] guarded
        uint32_t parity
        double gain

    GuardPlan plan_guard(const vector[Weighed] &, size_t, uint32_t, double) except +
    vector[double] guard_odds(uint32_t, uint32_t, double) except +


cdef extern from "comm/parity.hpp" namespace "gf" nogil:
    uint32_t parity_for(uint32_t, uint32_t, double)
    uint8_t parity_code(uint32_t, uint32_t)


cdef extern from "comm/cauchy.hpp" namespace "gf" nogil:
    void cauchy_encode(uint32_t, uint32_t, const uint8_t *const *, uint8_t *const *, size_t)
    cbool cauchy_decode(uint32_t, uint32_t, const vector[const uint8_t *] &, const vector[uint32_t] &,
                        const uint8_t *const *, size_t, uint8_t *const *) except +


cdef extern from "comm/congestion.hpp" namespace "gf" nogil:
    cdef struct RateMark:
        double delivered
        double delivered_time
        double first_sent

    cdef cppclass Congestion:
        Congestion(size_t)
        RateMark mark(double, cbool)
        void delivered(const RateMark &, double, size_t, double)
        void acknowledged(double, double, double)
        void lost(double, size_t)
        double rate()
        double window()
        double bandwidth()


cdef extern from "comm/udp_transport.hpp" namespace "gf" nogil:
    cdef cppclass Atomic "std::atomic<uint64_t>":
        uint64_t load()

    cdef cppclass UdpCounts:
        Atomic datagrams
        Atomic bytes
        Atomic data
        Atomic lost
        Atomic parity
        Atomic recovered
        Atomic guard
        Atomic forged
        Atomic replayed
        Atomic malformed
        Atomic dead_paths

    cdef struct PathState "gf::UdpTransport::PathState":
        double rtt
        double min_rtt
        double bandwidth
        double loss
        uint32_t reorder
        cbool dead

    cdef cppclass UdpTransport(Transport):
        UdpTransport(int, uint32_t, size_t, cbool, double) except +
        string add_path(const string &, int)
        int port(size_t)
        string add_peer(int, const vector[string] &, const vector[int] &, const uint8_t *, const uint8_t *,
                        size_t)
        const UdpCounts &counts()
        vector[PathState] paths(int)


cdef extern from "comm/local_transport.hpp" namespace "gf" nogil:
    cdef cppclass LocalHub:
        LocalHub()

    cdef cppclass LocalTransport(Transport):
        LocalTransport(shared_ptr[LocalHub], int, int)
