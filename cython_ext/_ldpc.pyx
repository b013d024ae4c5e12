# distutils: language = c++
"""The LDPC-Staircase erasure code: thin wrappers over the C++ in ``comm/``.

``hvd_gradflow.comm.ldpc`` is the way in.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

import numpy as np

from hvd_gradflow import config as _config
from hvd_gradflow.errors import ConfigError


cdef extern from "comm/ldpc.hpp" namespace "gradflow" nogil:
    cdef cppclass StripOp:
        uint16_t target
        uint16_t count

    cdef cppclass StripProgram:
        uint32_t slots
        vector[StripOp] ops
        vector[uint16_t] entries
        vector[uint16_t] outputs

    cdef cppclass LdpcGraph:
        vector[uint32_t] row_begin
        vector[uint16_t] row_columns

    cdef cppclass LdpcPlan:
        cbool solvable
        uint32_t inactive
        vector[uint8_t] rows
        StripProgram program

    cdef cppclass LdpcCode:
        @staticmethod
        const char *fault(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed)
        @staticmethod
        shared_ptr[const LdpcCode] make(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed)
        uint32_t k() const
        uint32_t m() const
        const LdpcGraph &graph() const
        cbool encode(const uint8_t *const *, uint8_t *const *, size_t, size_t) const

    cdef cppclass LdpcDecoder:
        LdpcDecoder(shared_ptr[const LdpcCode], size_t, size_t)
        cbool ok() const
        cbool add(uint32_t, const uint8_t *)
        cbool has(uint32_t) const
        void reset()
        uint32_t missing() const
        cbool decodable()
        uint32_t deficit()
        cbool solve(uint8_t *const *)
        const LdpcPlan &plan() const

    cdef size_t kLdpcMaxSymbolBytes

    cdef cppclass StripLevel:
        const char *name
    const StripLevel *const *strip_levels()
    const StripLevel &strip_level()
    cbool set_strip_level(const char *)


cdef extern from "comm/ldpc_prng.hpp" namespace "gradflow" nogil:
    cdef cppclass MinimalStandard:
        MinimalStandard(uint32_t)
        uint32_t next()
        uint32_t below(uint32_t)


cdef extern from "comm/ldpc_trials.hpp" namespace "gradflow" nogil:
    cdef cppclass LdpcTrials:
        uint64_t trials, too_few, peeling, failed, inactive
    LdpcTrials ldpc_trials(const LdpcCode &, uint64_t, uint64_t, uint64_t) except +


MAX_SYMBOL_BYTES = kLdpcMaxSymbolBytes


cdef class Code:
    """The structure of one code, and its XORs on this machine.

    Raises
    ------
    ConfigError
        If there is no such code, with the reason.
    MemoryError
    """

    cdef shared_ptr[const LdpcCode] code

    def __init__(self, uint32_t k, uint32_t m, uint32_t n1, uint32_t seed):
        cdef const char *fault = LdpcCode.fault(k, m, n1, seed)
        if fault != NULL:
            raise ConfigError(f"LDPC code of k={k}, m={m}, n1={n1}, seed={seed}: {fault.decode()}")
        with nogil:
            self.code = LdpcCode.make(k, m, n1, seed)
        if self.code.get() == NULL:
            raise MemoryError(f"LDPC code of k={k}, m={m}: no memory")

    def matrix(self):
        """Return the parity check matrix, m rows of ascending ESIs: where each begins, and the ESIs."""
        cdef const LdpcGraph *graph = &self.code.get().graph()
        begins = np.array(graph.row_begin, np.uint32)
        return begins, np.array(graph.row_columns, np.uint32)

    def encode(self, const uint8_t[:, ::1] source, uint8_t[:, ::1] parity, size_t last_bytes):
        """Write the parity symbols; behind ``last_bytes`` of the last source symbol zeros are thought."""
        cdef size_t symbol_bytes = source.shape[1]
        cdef vector[const uint8_t *] sources
        cdef vector[uint8_t *] parities
        cdef Py_ssize_t i
        cdef cbool done
        if source.shape[0] != self.code.get().k() or parity.shape[0] != self.code.get().m():
            found = f"{source.shape[0]} source and {parity.shape[0]} parity symbols"
            raise ValueError(f"{found} do not fit the code")
        if parity.shape[1] != source.shape[1]:
            raise ValueError(f"parity symbols of {parity.shape[1]} bytes, expected {symbol_bytes}")
        for i in range(source.shape[0]):
            sources.push_back(&source[i, 0])
        for i in range(parity.shape[0]):
            parities.push_back(&parity[i, 0])
        with nogil:
            done = self.code.get().encode(sources.data(), parities.data(), symbol_bytes, last_bytes)
        if not done:
            raise MemoryError(f"symbols of {symbol_bytes} bytes: no memory, or a size that cannot be")

    def decode(self, const uint8_t[:, ::1] symbols, const uint8_t[::1] received, uint8_t[:, ::1] out):
        """Write the source symbols to ``out``; return 0, or how many symbols more are needed at least."""
        cdef size_t symbol_bytes = symbols.shape[1]
        cdef vector[uint8_t *] missing
        cdef Py_ssize_t i, k = self.code.get().k()
        cdef cbool done
        cdef uint32_t deficit = 0
        if symbols.shape[0] != k + self.code.get().m() or received.shape[0] != symbols.shape[0]:
            found = f"{symbols.shape[0]} symbols and {received.shape[0]} flags"
            raise ValueError(f"{found} do not fit the code")
        if out.shape[0] != k or out.shape[1] != symbols.shape[1]:
            raise ValueError(f"out is of {out.shape[0]} x {out.shape[1]}, expected {k} x {symbol_bytes}")
        cdef LdpcDecoder *decoder = new LdpcDecoder(self.code, symbol_bytes, symbol_bytes)
        try:
            with nogil:
                for i in range(symbols.shape[0]):
                    if received[i]:
                        decoder.add(i, &symbols[i, 0])
                deficit = decoder.deficit()
                if deficit == 0:
                    for i in range(k):
                        if received[i]:
                            memcpy(&out[i, 0], &symbols[i, 0], symbol_bytes)
                        else:
                            missing.push_back(&out[i, 0])
                    done = decoder.solve(missing.data())
            if deficit == 0 and not done:
                raise MemoryError(f"symbols of {symbol_bytes} bytes: no memory, or a size that cannot be")
        finally:
            del decoder
        return deficit

    def plan(self, const uint8_t[::1] received):
        """Return how to decode: symbols needed still, rows needed, slots, ops, slots of the missing.

        An op is (target, entries). Where symbols are needed there are none.
        """
        cdef uint8_t symbol = 0
        cdef Py_ssize_t i
        cdef size_t at = 0, count
        cdef LdpcDecoder *decoder = new LdpcDecoder(self.code, 1, 1)
        cdef const StripProgram *program
        try:
            for i in range(received.shape[0]):
                if received[i]:
                    decoder.add(i, &symbol)
            needed = decoder.deficit()
            if needed or decoder.missing() == 0:
                return needed, [], 0, [], []
            program = &decoder.plan().program
            entries, outputs, rows = program.entries, program.outputs, decoder.plan().rows
            ops = []
            for i in range(<Py_ssize_t>program.ops.size()):
                count = program.ops[i].count
                ops.append((program.ops[i].target, entries[at:at + count]))
                at += count
            return 0, [row for row, needed in enumerate(rows) if needed], program.slots, ops, outputs
        finally:
            del decoder

    def trials(self, uint64_t threshold, uint64_t trials, uint64_t random):
        """Return counts as a dict: see ``comm/ldpc_trials.hpp``."""
        cdef LdpcTrials found
        with nogil:
            found = ldpc_trials(self.code.get()[0], threshold, trials, random)
        return {"trials": found.trials, "too_few": found.too_few, "peeling": found.peeling,
                "failed": found.failed, "inactive": found.inactive}


# ---- For tests: the decoder as the transport uses it

def assemble(Code code, const uint8_t[:, ::1] symbols, const uint32_t[::1] esis, size_t last_bytes):
    """Add symbols in some order (an ESI beyond them is handed on); return the source, and how many were new.

    Behind ``last_bytes`` of the last source symbol there is 0xA5.
    """
    cdef size_t k = code.code.get().k(), symbol_bytes = symbols.shape[1], esi, fresh = 0
    cdef Py_ssize_t i
    cdef vector[uint8_t *] missing
    cdef LdpcDecoder *decoder = new LdpcDecoder(code.code, symbol_bytes, last_bytes)
    source = np.full((k, symbol_bytes), 0xA5, np.uint8)
    cdef uint8_t[:, ::1] out = source
    try:
        for i in range(esis.shape[0]):
            esi = esis[i]
            fresh += decoder.add(esi, &symbols[esi, 0] if esi < <size_t>symbols.shape[0] else &symbols[0, 0])
        for i in range(<Py_ssize_t>k):
            if decoder.has(i):
                memcpy(&out[i, 0], &symbols[i, 0], last_bytes if <size_t>i == k - 1 else symbol_bytes)
            else:
                missing.push_back(&out[i, 0])
        if not decoder.solve(missing.data()):
            raise ValueError(f"{decoder.missing()} source symbols cannot be recovered")
        decoder.reset()
        if decoder.missing() != k or decoder.decodable():
            raise AssertionError("reset() left something")
    finally:
        del decoder
    return source, fresh


def decodable_after(Code code, const uint32_t[::1] esis):
    """Return what ``decodable()`` says after each symbol."""
    cdef uint8_t symbol = 0
    cdef LdpcDecoder *decoder = new LdpcDecoder(code.code, 1, 1)
    cdef Py_ssize_t i
    answers = []
    try:
        for i in range(esis.shape[0]):
            decoder.add(esis[i], &symbol)
            answers.append(bool(decoder.decodable()))
    finally:
        del decoder
    return answers


def minimal_standard(uint32_t seed, size_t count):
    """Return the ``count``-th number of the generator of RFC 5170, section 5.7."""
    if not 0 < seed < 0x7FFFFFFF:
        raise ValueError(f"seed {seed}: expected 1 to 2147483646")
    cdef MinimalStandard *generator = new MinimalStandard(seed)
    cdef uint32_t value = seed
    for _ in range(count):
        value = generator.next()
    del generator
    return value


def simd_levels():
    """Return the instruction levels of this machine, best first."""
    cdef const StripLevel *const *levels = strip_levels()
    found = []
    while levels[0] != NULL:
        found.append(levels[0].name.decode())
        levels += 1
    return found


def simd_level():
    """Return the level in use."""
    return strip_level().name.decode()


def set_simd_level(str name):
    """Use one level from now on, in the whole process; ``auto`` takes the best."""
    if not set_strip_level(name.encode()):
        listed = ", ".join(simd_levels())
        raise ConfigError(f"GRADFLOW_SIMD={name!r}: this machine has {listed}; choose one of these, or auto")


set_simd_level(_config.load().simd)
