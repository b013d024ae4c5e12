# distutils: language = c++
"""GPU kernels: thin wrappers over a library of cuda/ (gpu_api.h), CUDA's, HIP's or the emulated one.

The library is loaded by its path, so that this module can be imported where there is none;
``hvd_gradflow.device.gpu_device`` is the way in.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from hvd_gradflow.errors import DeviceError, UnsupportedError


cdef extern from "gf_api.h" nogil:
    cdef struct gf_codec_spec:
        uint16_t id
        uint8_t bits
        uint8_t rounding
        uint32_t block
        uint64_t seed
        uint64_t params[2]

    cdef struct gf_segment:
        uint64_t end
        float step
        uint32_t reserved


cdef extern from "../cuda/gpu_api.h" nogil:
    const char *GF_GPU_API_SYMBOL
    int GF_GPU_API_VERSION

    cdef struct gf_piece:
        uint64_t address

    cdef struct gf_wavelet:
        float filter[8]
        uint32_t taps, levels
        uint64_t n, rows, width, columns
        uint32_t inverse, reserved

    cdef struct gf_xor_lists:
        const uint32_t *targets
        const uint32_t *begins
        const uint32_t *entries
        uint32_t count

    cdef struct gf_gpu_api:
        int version
        const char *name
        int dlpack_type
        const char *(*error_text)(int) noexcept nogil
        int (*device_count)(int *) noexcept nogil
        int (*device_name)(int, char *, size_t) noexcept nogil
        int (*set_device)(int) noexcept nogil
        int (*current_device)(int *) noexcept nogil
        int (*restore_device)(int) noexcept nogil
        int (*check_device)() noexcept nogil
        int (*allocate)(size_t, void **) noexcept nogil
        int (*release)(void *) noexcept nogil
        int (*allocate_host)(size_t, void **) noexcept nogil
        int (*release_host)(void *) noexcept nogil
        int (*device_of)(const void *, int *) noexcept nogil
        int (*copy)(void *, const void *, size_t, int, void *, int) noexcept nogil
        int (*stream_create)(void **) noexcept nogil
        int (*stream_destroy)(void *) noexcept nogil
        int (*stream_synchronize)(void *) noexcept nogil
        int (*stream_wait)(void *, void *) noexcept nogil
        int (*event_create)(void **) noexcept nogil
        int (*event_destroy)(void *) noexcept nogil
        int (*event_record)(void *, void *) noexcept nogil
        int (*event_done)(void *, int *) noexcept nogil
        int (*event_synchronize)(void *) noexcept nogil
        int (*event_seconds)(void *, void *, double *) noexcept nogil
        int (*delay)(double, void *) noexcept nogil
        const char *(*spec_fault)(const gf_codec_spec *) noexcept nogil
        size_t (*scratch_bytes)(const gf_codec_spec *, size_t) noexcept nogil
        int (*encode)(const gf_codec_spec *, int, const void *, float *, size_t, uint64_t, uint64_t,
                      uint8_t *, uint64_t *, void *, size_t, void *) noexcept nogil
        int (*decode)(const gf_codec_spec *, const uint8_t *, size_t, float *, size_t, int, int32_t *, void *,
                      size_t, void *) noexcept nogil
        int (*encode_stepped)(const gf_codec_spec *, const gf_segment *, size_t, int, const void *, float *,
                              size_t, uint8_t *, uint64_t *, void *, size_t, void *) noexcept nogil
        int (*add_codes)(const gf_codec_spec *, const gf_segment *, size_t, const uint8_t *, size_t, float *,
                         size_t, int32_t *, void *, size_t, void *) noexcept nogil
        int (*encode_codes)(const gf_codec_spec *, const gf_segment *, size_t, int, const float *, size_t,
                            uint8_t *, uint64_t *, void *, size_t, void *) noexcept nogil
        size_t (*statistics_scratch_bytes)(size_t) noexcept nogil
        int (*statistics)(const float *, const float *, size_t, double *, void *, size_t,
                          void *) noexcept nogil
        int (*gather)(const gf_piece *, size_t, float *, size_t, int32_t *, void *) noexcept nogil
        int (*scatter)(const float *, float, const gf_piece *, size_t, size_t, void *) noexcept nogil
        int (*sum)(float *, const float *, const float *, float, size_t, int32_t *, void *) noexcept nogil
        int (*energies)(const float *, const float *, const uint64_t *, size_t, double *,
                        void *) noexcept nogil
        int (*scale_segments)(float *, const gf_segment *, size_t, void *) noexcept nogil
        int (*bound)(float *, size_t, const int32_t *, void *) noexcept nogil
        int (*saturate)(float *, size_t, float, void *) noexcept nogil
        int (*owe)(float *, const float *, const float *, size_t, void *) noexcept nogil
        size_t (*wavelet_scratch_bytes)(size_t) noexcept nogil
        int (*wavelet)(const gf_wavelet *, const float *, float *, const int32_t *, void *, size_t,
                       void *) noexcept nogil
        int (*xor_lists)(const gf_xor_lists *, const uint8_t *, size_t, uint8_t *, size_t, size_t, int,
                         void *) noexcept nogil


cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    const char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL

ctypedef const gf_gpu_api *(*library_function)() noexcept nogil

WIRE_ENTROPY = 100  # GF_GPU_WIRE_ENTROPY


cdef gf_codec_spec _spec(dict spec) except *:
    cdef gf_codec_spec s
    s.id = spec["id"]
    s.bits = spec["bits"]
    s.rounding = spec["rounding"]
    s.block = spec["block"]
    s.seed = spec["seed"]
    s.params[0] = spec["params"][0]
    s.params[1] = spec["params"][1]
    return s


cdef class Library:
    """One library of kernels, for the device of an index.

    Addresses, streams and events are integers throughout; nothing checks them. The GIL is released in every
    call that may take a while.

    Raises
    ------
    UnsupportedError
        If the library cannot be loaded, or is of another release.
    """

    cdef const gf_gpu_api *api
    cdef int device

    def __init__(self, str path, int device=0):
        cdef bytes encoded = path.encode()
        cdef const char *file = encoded
        cdef void *handle
        with nogil:
            handle = dlopen(file, RTLD_NOW | RTLD_LOCAL)
        if handle == NULL:
            raise UnsupportedError(f"{dlerror().decode()}: build the kernels again (`make build`)")
        cdef library_function get = <library_function>dlsym(handle, GF_GPU_API_SYMBOL)
        if get == NULL:
            raise UnsupportedError(f"{path} has no {GF_GPU_API_SYMBOL.decode()}: it is no library of cuda/")
        self.api = get()
        self.device = device
        if self.api.version != GF_GPU_API_VERSION:
            raise UnsupportedError(
                f"{path} is of version {self.api.version}, expected {GF_GPU_API_VERSION}: `make build` again"
            )

    cdef _check(self, int error, str what):
        if error:
            text = self.api.error_text(error).decode()
            raise DeviceError(f"{self.api.name.decode()}:{self.device}, {what}: {text} ({error})")

    cdef _here(self):
        """The calling thread's current device becomes this one; returns which it was."""
        cdef int before = -1
        self._check(self.api.current_device(&before), "current device")
        if before != self.device:
            self._check(self.api.set_device(self.device), "choosing the device")
        return before

    cdef _back(self, int before):
        if before != self.device:
            self.api.restore_device(before)

    def api_address(self):
        """Return the address of the gf_gpu_api, valid as long as the process lives."""
        return <uintptr_t>self.api

    # ---- Devices

    def name(self):
        """Return the runtime's name."""
        return self.api.name.decode()

    def dlpack_type(self):
        """Return the DLDeviceType of its memory."""
        return self.api.dlpack_type

    def device_count(self):
        """Return how many devices there are, and what is wrong if that cannot be told."""
        cdef int count = 0
        cdef int error
        with nogil:
            error = self.api.device_count(&count)
        if error:
            return 0, f"{self.api.error_text(error).decode()} ({error})"
        return count, None

    def device_trouble(self):
        """Return why the device cannot run these kernels, or None."""
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.check_device()
        self._back(before)
        return f"{self.api.error_text(error).decode()} ({error})" if error else None

    def device_name(self):
        """Return one line about the device."""
        cdef char text[256]
        cdef int error
        with nogil:
            error = self.api.device_name(self.device, text, sizeof(text))
        self._check(error, "asking for its properties")
        return text.decode(errors="replace")

    # ---- Memory

    def allocate(self, size_t size, bint host=False):
        """Return the address of new memory, of the device or pinned memory of the host."""
        cdef void *address = NULL
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.allocate_host(size, &address) if host else self.api.allocate(size, &address)
        self._back(before)
        self._check(error, f"allocating {size} bytes{' of pinned memory' if host else ''}")
        return <uintptr_t>address

    def release(self, uintptr_t address, bint host=False):
        """Free memory; what still uses it is waited for."""
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.release_host(<void *>address) if host else self.api.release(<void *>address)
        self._back(before)
        self._check(error, "freeing memory")

    def device_of(self, uintptr_t address):
        """Return the index of the device on which an address lies, -1 for the host's memory."""
        cdef int device = -1
        self._check(self.api.device_of(<const void *>address, &device), "asking where an address lies")
        return device

    def copy(self, uintptr_t target, uintptr_t source, size_t size, int kind, uintptr_t stream, bint wait):
        """Copy bytes on a stream."""
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.copy(<void *>target, <const void *>source, size, kind, <void *>stream, wait)
        self._back(before)
        self._check(error, f"copying {size} bytes")

    # ---- Streams and events

    def stream_create(self):
        cdef void *stream = NULL
        before = self._here()
        error = self.api.stream_create(&stream)
        self._back(before)
        self._check(error, "making a stream")
        return <uintptr_t>stream

    def stream_destroy(self, uintptr_t stream):
        cdef int error
        with nogil:
            error = self.api.stream_destroy(<void *>stream)
        self._check(error, "destroying a stream")

    def stream_synchronize(self, uintptr_t stream):
        cdef int error
        before = self._here()  # a null stream is that of the current device
        with nogil:
            error = self.api.stream_synchronize(<void *>stream)
        self._back(before)
        self._check(error, "waiting for a stream")

    def stream_wait(self, uintptr_t stream, uintptr_t event):
        before = self._here()
        error = self.api.stream_wait(<void *>stream, <void *>event)
        self._back(before)
        self._check(error, "letting a stream wait")

    def event_create(self):
        cdef void *event = NULL
        before = self._here()
        error = self.api.event_create(&event)
        self._back(before)
        self._check(error, "making an event")
        return <uintptr_t>event

    def event_destroy(self, uintptr_t event):
        self._check(self.api.event_destroy(<void *>event), "destroying an event")

    def event_record(self, uintptr_t event, uintptr_t stream):
        before = self._here()
        error = self.api.event_record(<void *>event, <void *>stream)
        self._back(before)
        self._check(error, "recording an event")

    def event_done(self, uintptr_t event):
        cdef int done = 0
        self._check(self.api.event_done(<void *>event, &done), "asking an event")
        return done != 0

    def event_synchronize(self, uintptr_t event):
        cdef int error
        with nogil:
            error = self.api.event_synchronize(<void *>event)
        self._check(error, "waiting for an event")

    def event_seconds(self, uintptr_t begin, uintptr_t end):
        """Return the seconds between two events that were reached."""
        cdef double seconds = 0
        self._check(self.api.event_seconds(<void *>begin, <void *>end, &seconds), "timing")
        return seconds

    def delay(self, double seconds, uintptr_t stream):
        """Keep a stream busy."""
        before = self._here()
        error = self.api.delay(seconds, <void *>stream)
        self._back(before)
        self._check(error, "delaying a stream")

    # ---- Kernels

    def spec_fault(self, dict spec):
        """Return why these kernels do not take a specification, or None."""
        cdef gf_codec_spec s = _spec(spec)
        cdef const char *fault = self.api.spec_fault(&s)
        return None if fault == NULL else fault.decode()

    def scratch_bytes(self, dict spec, size_t n):
        """Return the bytes of scratch for n elements."""
        cdef gf_codec_spec s = _spec(spec)
        return self.api.scratch_bytes(&s, n)

    def encode(self, dict spec, int dtype, uintptr_t x, uintptr_t residual, size_t n, uint64_t key,
               uint64_t first, uintptr_t out, uintptr_t size, uintptr_t scratch, uintptr_t stream):
        cdef gf_codec_spec s = _spec(spec)
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
        cdef gf_codec_spec s = _spec(spec)
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
        cdef gf_codec_spec s = _spec(spec)
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
        cdef gf_codec_spec s = _spec(spec)
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
        cdef gf_codec_spec s = _spec(spec)
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
