# distutils: language = c++
"""GPU kernels: thin wrappers over a library of cuda/ (gpu_api.h), CUDA's, HIP's or the emulated one.

The library is loaded by its path, so that this module can be imported where there is none;
``hvd_gradflow.device.gpu_device`` is the way in.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t

from codec_api cimport gf_codec_spec, gf_segment, spec_of
from gpu_api cimport (
    GF_GPU_API_SYMBOL,
    GF_GPU_API_VERSION,
    gf_gpu_api,
    gf_piece,
    gf_wavelet,
    gf_xor_lists,
    library_function,
)

from hvd_gradflow.errors import DeviceError, UnsupportedError

include "gpu_library.pxi"

WIRE_ENTROPY = 100  # GF_GPU_WIRE_ENTROPY


cdef class Library(LoadedLibrary):
    """One library of kernels, for the device of an index; as its base, with the kernels themselves."""

    # ---- Kernels

    def spec_fault(self, dict spec):
        """Return why these kernels do not take a specification, or None."""
        cdef gf_codec_spec s = spec_of(spec)
        cdef const char *fault = self.api.spec_fault(&s)
        return None if fault == NULL else fault.decode()

    def scratch_bytes(self, dict spec, size_t n):
        """Return the bytes of scratch for n elements."""
        cdef gf_codec_spec s = spec_of(spec)
        return self.api.scratch_bytes(&s, n)

    def encode(self, dict spec, int dtype, uintptr_t x, uintptr_t residual, size_t n, uint64_t key,
               uint64_t first, uintptr_t out, uintptr_t size, uintptr_t scratch, uintptr_t stream):
        cdef gf_codec_spec s = spec_of(spec)
        cdef size_t room = self.api.scratch_bytes(&s, n)
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.encode(&s, dtype, <const void *>x, <float *>residual, n, key, first,
                                    <uint8_t *>out, <uint64_t *>size, <void *>scratch, room, <void *>stream)
        self._back(before)
        self._check(error, "encode")

    def decode(self, dict spec, uintptr_t payload, size_t nbytes, uintptr_t out, size_t n, bint add,
               uintptr_t status, uintptr_t scratch, uintptr_t stream):
        cdef gf_codec_spec s = spec_of(spec)
        cdef size_t room = self.api.scratch_bytes(&s, n)
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.decode(&s, <const uint8_t *>payload, nbytes, <float *>out, n, add,
                                    <int32_t *>status, <void *>scratch, room, <void *>stream)
        self._back(before)
        self._check(error, "decode")

    def encode_stepped(self, dict spec, const uint8_t[::1] segments, int dtype, uintptr_t x,
                       uintptr_t residual, size_t n, uintptr_t out, uintptr_t size, uintptr_t scratch,
                       uintptr_t stream):
        cdef gf_codec_spec s = spec_of(spec)
        cdef size_t room = self.api.scratch_bytes(&s, n), count = segments.shape[0] // sizeof(gf_segment)
        cdef const gf_segment *table = <const gf_segment *>&segments[0] if count else NULL
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.encode_stepped(&s, table, count, dtype, <const void *>x, <float *>residual, n,
                                            <uint8_t *>out, <uint64_t *>size, <void *>scratch, room,
                                            <void *>stream)
        self._back(before)
        self._check(error, "encode_stepped")

    def add_codes(self, dict spec, const uint8_t[::1] segments, uintptr_t payload, size_t nbytes,
                  uintptr_t acc, size_t n, uintptr_t status, uintptr_t scratch, uintptr_t stream):
        cdef gf_codec_spec s = spec_of(spec)
        cdef size_t room = self.api.scratch_bytes(&s, n), count = segments.shape[0] // sizeof(gf_segment)
        # Not null, which would mean that any segments will do.
        cdef gf_segment none
        cdef const gf_segment *table = <const gf_segment *>&segments[0] if count else &none
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.add_codes(&s, table, count, <const uint8_t *>payload, nbytes, <float *>acc, n,
                                       <int32_t *>status, <void *>scratch, room, <void *>stream)
        self._back(before)
        self._check(error, "add_codes")

    def encode_codes(self, dict spec, const uint8_t[::1] segments, int dtype, uintptr_t codes, size_t n,
                     uintptr_t out, uintptr_t size, uintptr_t scratch, uintptr_t stream):
        cdef gf_codec_spec s = spec_of(spec)
        cdef size_t room = self.api.scratch_bytes(&s, n), count = segments.shape[0] // sizeof(gf_segment)
        cdef const gf_segment *table = <const gf_segment *>&segments[0] if count else NULL
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.encode_codes(&s, table, count, dtype, <const float *>codes, n, <uint8_t *>out,
                                          <uint64_t *>size, <void *>scratch, room, <void *>stream)
        self._back(before)
        self._check(error, "encode_codes")

    def statistics_scratch_bytes(self, size_t n):
        """Return the bytes of scratch for statistics of n elements."""
        return self.api.statistics_scratch_bytes(n)

    def statistics(self, uintptr_t x, uintptr_t residual, size_t n, uintptr_t out, uintptr_t scratch,
                   uintptr_t stream):
        cdef size_t room = self.api.statistics_scratch_bytes(n)
        before = self._here()
        error = self.api.statistics(<const float *>x, <const float *>residual, n, <double *>out,
                                    <void *>scratch, room, <void *>stream)
        self._back(before)
        self._check(error, "statistics")

    def gather(self, uintptr_t pieces, size_t count, uintptr_t target, size_t n, uintptr_t finite,
               uintptr_t stream):
        before = self._here()
        error = self.api.gather(<const gf_piece *>pieces, count, <float *>target, n, <int32_t *>finite,
                                <void *>stream)
        self._back(before)
        self._check(error, "gather")

    def scatter(self, uintptr_t source, size_t n, float scale, uintptr_t pieces, size_t count,
                uintptr_t stream):
        before = self._here()
        error = self.api.scatter(<const float *>source, scale, <const gf_piece *>pieces, count, n,
                                 <void *>stream)
        self._back(before)
        self._check(error, "scatter")

    # ---- What the engine's thread calls by the structure itself.

    def sum(self, uintptr_t dst, uintptr_t a, uintptr_t b, float scale, size_t n, uintptr_t finite,
            uintptr_t stream):
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.sum(<float *>dst, <const float *>a, <const float *>b, scale, n,
                                 <int32_t *>finite, <void *>stream)
        self._back(before)
        self._check(error, "sum")

    def energies(self, uintptr_t x, uintptr_t residual, const uint64_t[::1] ends, uintptr_t out,
                 uintptr_t stream):
        cdef size_t count = ends.shape[0]
        cdef const uint64_t *table = &ends[0] if count else NULL
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.energies(<const float *>x, <const float *>residual, table, count, <double *>out,
                                      <void *>stream)
        self._back(before)
        self._check(error, "energies")

    def scale_segments(self, uintptr_t x, const uint8_t[::1] segments, uintptr_t stream):
        cdef size_t count = segments.shape[0] // sizeof(gf_segment)
        cdef const gf_segment *table = <const gf_segment *>&segments[0] if count else NULL
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.scale_segments(<float *>x, table, count, <void *>stream)
        self._back(before)
        self._check(error, "scale_segments")

    def bound(self, uintptr_t x, size_t n, uintptr_t finite, uintptr_t stream):
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.bound(<float *>x, n, <const int32_t *>finite, <void *>stream)
        self._back(before)
        self._check(error, "bound")

    def saturate(self, uintptr_t x, size_t n, float largest, uintptr_t stream):
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.saturate(<float *>x, n, largest, <void *>stream)
        self._back(before)
        self._check(error, "saturate")

    def owe(self, uintptr_t residual, uintptr_t values, uintptr_t arrives, size_t n, uintptr_t stream):
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.owe(<float *>residual, <const float *>values, <const float *>arrives, n,
                                 <void *>stream)
        self._back(before)
        self._check(error, "owe")

    # ---- What a stream of gradients calls by itself.

    def wavelet_scratch_bytes(self, size_t n):
        """Return the bytes of scratch for a transform of n elements."""
        return self.api.wavelet_scratch_bytes(n)

    def wavelet(self, const float[::1] filter, uint32_t levels, size_t n, size_t rows, size_t width,
                size_t columns, bint inverse, uintptr_t x, uintptr_t out, uintptr_t finite, uintptr_t scratch,
                uintptr_t stream):
        cdef gf_wavelet run
        cdef size_t room = self.api.wavelet_scratch_bytes(n), k
        cdef int error
        for k in range(8):
            run.filter[k] = filter[k] if k < <size_t>filter.shape[0] else 0
        run.taps, run.levels = filter.shape[0], levels
        run.n, run.rows, run.width, run.columns = n, rows, width, columns
        run.inverse, run.reserved = inverse, 0
        before = self._here()
        with nogil:
            error = self.api.wavelet(&run, <const float *>x, <float *>out, <const int32_t *>finite,
                                     <void *>scratch, room, <void *>stream)
        self._back(before)
        self._check(error, "wavelet")

    # ---- Erasure code

    def xor_lists(self, uintptr_t targets, uintptr_t begins, uintptr_t entries, uint32_t count,
                  uintptr_t source, size_t source_pitch, uintptr_t out, size_t out_pitch, size_t nbytes,
                  bint ordered, uintptr_t stream):
        cdef gf_xor_lists lists
        cdef int error
        lists.targets, lists.begins = <const uint32_t *>targets, <const uint32_t *>begins
        lists.entries, lists.count = <const uint32_t *>entries, count
        before = self._here()
        with nogil:
            error = self.api.xor_lists(&lists, <const uint8_t *>source, source_pitch, <uint8_t *>out,
                                       out_pitch, nbytes, ordered, <void *>stream)
        self._back(before)
        self._check(error, "xor_lists")
