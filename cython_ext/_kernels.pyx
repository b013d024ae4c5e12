# distutils: language = c++
"""Compiled kernels: thin wrappers over the C++ in ``kernels/``; ``hvd_gradflow.device`` is the way in."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.math cimport isfinite, signbit
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libcpp.vector cimport vector

from codec_api cimport gf_codec_spec, gf_segment, spec_of
from kernels_api cimport (
    GF_API_CAPSULE,
    Level,
    WaveletRun,
    api,
    available_levels,
    deadzone_add_codes,
    deadzone_encode_codes,
    deadzone_encode_stepped,
    decode_payload,
    encode_payload,
    level,
    max_body_bytes,
    set_level,
    spec_fault,
    transform_wavelet,
)

from hvd_gradflow import config as _config
from hvd_gradflow.errors import ConfigError

HEADER_BYTES = 32
MAX_SUM = 64


cdef gf_codec_spec _spec(dict spec) except *:
    cdef gf_codec_spec s = spec_of(spec)
    cdef const char *fault = spec_fault(s)
    if fault != NULL:
        raise ConfigError(f"codec specification {spec}: {fault.decode()}")
    return s


def max_encoded_size(dict spec, size_t n):
    """Return the upper bound, in bytes, of a payload of ``n`` elements."""
    return HEADER_BYTES + max_body_bytes(_spec(spec), n)


def encode(dict spec, const float[::1] x, float[::1] residual, uint64_t key, uint64_t first, int dtype,
           uint8_t[::1] out):
    """Encode ``x`` into ``out``; return the number of bytes written."""
    cdef gf_codec_spec s = _spec(spec)
    cdef size_t n = x.shape[0], written
    cdef float *r = NULL
    if residual is not None:
        if <size_t>residual.shape[0] != n:
            raise ValueError(f"residual has {residual.shape[0]} elements, expected {n}")
        if n:
            r = &residual[0]
    _room(s, n, out.shape[0])
    if first % s.block:
        raise ValueError(f"first={first} is not a multiple of the block ({s.block})")
    cdef const float *p = &x[0] if n else NULL
    cdef uint8_t *o = &out[0]
    with nogil:
        written = encode_payload(s, dtype, p, r, n, key, first, o)
    return written


def decode(dict spec, const uint8_t[::1] payload, float[::1] out, bint add):
    """Decode into ``out`` (or add to it); return a ``gf_wire_status``, 0 if all is well."""
    cdef gf_codec_spec s = _spec(spec)
    cdef size_t size = payload.shape[0], n = out.shape[0]
    cdef const uint8_t *p = &payload[0] if size else NULL
    cdef float *o = &out[0] if n else NULL
    cdef int status
    with nogil:
        status = decode_payload(s, p, size, o, n, add)
    return status


# ---- Codecs with steps that are given (deadzone) -------------------------------------------------------

ctypedef vector[gf_segment] Segments


cdef Segments _segments(const uint64_t[::1] ends, const float[::1] steps, size_t n) except *:
    cdef Segments segments
    cdef gf_segment segment
    cdef uint64_t begin = 0
    cdef Py_ssize_t i
    if ends.shape[0] != steps.shape[0]:
        raise ValueError(f"{ends.shape[0]} ends and {steps.shape[0]} steps, expected as many")
    for i in range(ends.shape[0]):
        if ends[i] <= begin or ends[i] > n or (i + 1 < ends.shape[0] and ends[i] % 32):
            expected = f"expected ascending multiples of 32, the last one {n}"
            raise ValueError(f"segment {i} ends at {ends[i]}: {expected}")
        if not isfinite(steps[i]) or signbit(steps[i]):
            raise ValueError(f"step {steps[i]} of segment {i}: expected a finite number that is not negative")
        segment.end = begin = ends[i]
        segment.step = steps[i]
        segment.reserved = 0
        segments.push_back(segment)
    if begin != n:
        raise ValueError(f"segments end at {begin}, expected {n}")
    return segments


cdef _room(const gf_codec_spec &s, size_t n, size_t there):
    if there < HEADER_BYTES + max_body_bytes(s, n):
        raise ValueError(f"out has {there} bytes, expected at least {HEADER_BYTES + max_body_bytes(s, n)}")


def encode_stepped(dict spec, const uint64_t[::1] ends, const float[::1] steps, const float[::1] x,
                   float[::1] residual, int dtype, uint8_t[::1] out):
    """Encode ``x`` with these steps, each up to its end; return the number of bytes written."""
    cdef gf_codec_spec s = _spec(spec)
    cdef size_t n = x.shape[0], written
    cdef Segments segments = _segments(ends, steps, n)
    cdef float *r = NULL
    _room(s, n, out.shape[0])
    if residual is not None:
        if <size_t>residual.shape[0] != n:
            raise ValueError(f"residual has {residual.shape[0]} elements, expected {n}")
        if n:
            r = &residual[0]
    cdef const float *p = &x[0] if n else NULL
    with nogil:
        written = deadzone_encode_stepped(s, dtype, segments.data(), segments.size(), p, r, n, &out[0])
    return written


def add_codes(dict spec, const uint64_t[::1] ends, const float[::1] steps, const uint8_t[::1] payload,
              float[::1] acc):
    """Add a payload's integers to ``acc``; return a ``gf_wire_status``."""
    cdef gf_codec_spec s = _spec(spec)
    cdef size_t size = payload.shape[0], n = acc.shape[0]
    cdef Segments segments = _segments(ends, steps, n)
    cdef const uint8_t *p = &payload[0] if size else NULL
    cdef float *o = &acc[0] if n else NULL
    cdef int status
    with nogil:
        status = deadzone_add_codes(s, segments.data(), segments.size(), p, size, o, n)
    return status


def encode_codes(dict spec, const uint64_t[::1] ends, const float[::1] steps, const float[::1] codes,
                 int dtype, uint8_t[::1] out):
    """Encode integers, which decode to themselves times the steps; return the number of bytes written."""
    cdef gf_codec_spec s = _spec(spec)
    cdef size_t n = codes.shape[0], written
    cdef Segments segments = _segments(ends, steps, n)
    _room(s, n, out.shape[0])
    cdef const float *p = &codes[0] if n else NULL
    with nogil:
        written = deadzone_encode_codes(s, dtype, segments.data(), segments.size(), p, n, &out[0])
    return written


# ---- Arrays -------------------------------------------------------------------------------------------

def load_f32(uintptr_t address, int dtype, float[::1] dst):
    """Convert the elements at ``address`` to float32; return whether all are finite."""
    cdef size_t n = dst.shape[0]
    cdef int finite
    if n == 0:
        return True
    with nogil:
        finite = api().load_f32(<const void *>address, dtype, &dst[0], n)
    return finite != 0


def store_f32(const float[::1] src, float scale, uintptr_t address, int dtype):
    """Write ``src * scale`` to ``address``, rounded to nearest even."""
    cdef size_t n = src.shape[0]
    if n:
        with nogil:
            api().store_f32(&src[0], scale, <void *>address, dtype, n)


def sum_f32(float[::1] dst, list srcs, float scale):
    """``dst = (srcs[0] + srcs[1] + ...) * scale``, in that order."""
    cdef const float *pointers[64]
    cdef const float[::1] src
    cdef int count = len(srcs), i
    cdef size_t n = dst.shape[0]
    if not 1 <= count <= MAX_SUM:
        raise ValueError(f"{count} arrays to sum, expected 1 to {MAX_SUM}")
    for i in range(count):
        src = srcs[i]
        if <size_t>src.shape[0] != n:
            raise ValueError(f"array {i} has {src.shape[0]} elements, expected {n}")
        pointers[i] = &src[0] if n else NULL
    if n:
        with nogil:
            api().sum_f32(&dst[0], pointers, count, scale, n)


def sum_f64(double[::1] dst, list srcs, double scale):
    """``dst = (srcs[0] + srcs[1] + ...) * scale`` in float64, in that order."""
    cdef const double *pointers[64]
    cdef const double[::1] src
    cdef int count = len(srcs), i
    cdef size_t n = dst.shape[0]
    if not 1 <= count <= MAX_SUM:
        raise ValueError(f"{count} arrays to sum, expected 1 to {MAX_SUM}")
    for i in range(count):
        src = srcs[i]
        if <size_t>src.shape[0] != n:
            raise ValueError(f"array {i} has {src.shape[0]} elements, expected {n}")
        pointers[i] = &src[0] if n else NULL
    if n:
        with nogil:
            api().sum_f64(&dst[0], pointers, count, scale, n)


def energy(const float[::1] x):
    """Return the sum of squares in a fixed order; elements that are not finite count 0."""
    cdef size_t n = x.shape[0]
    cdef double e = 0.0
    if n:
        with nogil:
            e = api().energy(&x[0], n)
    return e


def encode_indices(const int64_t[::1] indices, uint64_t n, uint8_t[::1] out):
    """Write the code of ascending indices below ``n``, for which there is room; return its bytes."""
    cdef size_t k = indices.shape[0], written
    cdef const int64_t *p = &indices[0] if k else NULL
    with nogil:
        written = level().encode_indices(p, k, n, &out[0])
    return written


def decode_indices(const uint8_t[::1] code, uint64_t n, int64_t[::1] out):
    """Return whether ``code`` is that of ``out.size`` indices below ``n``; then they are in ``out``."""
    cdef size_t size = code.shape[0], k = out.shape[0]
    cdef const uint8_t *p = &code[0] if size else NULL
    cdef int64_t *o = &out[0] if k else NULL
    cdef bint valid
    with nogil:
        valid = level().decode_indices(p, size, n, o, k)
    return valid


def crc32c(const uint8_t[::1] data, uint32_t crc=0):
    """Return the CRC32C of ``data``, continuing from ``crc``."""
    cdef size_t n = data.shape[0]
    if n:
        with nogil:
            crc = api().crc32c(crc, &data[0], n)
    return crc


def dither_key(uint64_t seed, uint64_t rank, uint64_t name_hash, uint64_t sequence, uint64_t stage):
    """Return the key of one payload's stochastic rounding."""
    return api().dither_key(seed, rank, name_hash, sequence, stage)


def wavelet(const float[::1] x, float[::1] out, const float[::1] filter, int levels, size_t rows,
            size_t width, size_t columns, bint inverse, bint finite):
    """Transform ``x`` into ``out``; the caller has checked the rest, the extents above all."""
    cdef WaveletRun run
    run.n = x.shape[0]
    if run.n == 0:
        return
    run.x, run.out, run.filter = &x[0], &out[0], &filter[0]
    run.taps, run.levels = filter.shape[0], levels
    run.rows, run.width, run.columns = rows, width, columns
    run.inverse, run.finite = inverse, finite
    with nogil:
        transform_wavelet(run)


def api_capsule():
    """Return the ``gf_api`` for other compiled modules, as a PyCapsule named ``GF_API_CAPSULE``."""
    return PyCapsule_New(<void *>api(), GF_API_CAPSULE, NULL)


def simd_levels():
    """Return the names of the instruction levels that this machine has, best first."""
    names = []
    cdef const Level *const *found = available_levels()
    while found[0] != NULL:
        names.append(found[0].name.decode())
        found += 1
    return names


def simd_level():
    """Return the name of the level in use."""
    return level().name.decode()


def set_simd_level(str name):
    """Use one level from now on, in the whole process; ``auto`` takes the best."""
    if not set_level(name.encode()):
        listed = ", ".join(simd_levels())
        raise ConfigError(f"GRADFLOW_SIMD={name!r}: this machine has {listed}; choose one of these, or auto")


# ---- DLPack: only what is needed to see where a tensor lies (dlpack.h, versions 0 and 1) -------------

cdef struct DLTensor:
    void *data
    int32_t device_type
    int32_t device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t *shape
    int64_t *strides
    uint64_t byte_offset

cdef struct DLManagedTensorVersioned:
    uint32_t major
    uint32_t minor
    void *manager_ctx
    void *deleter
    uint64_t flags
    DLTensor dl_tensor


def dlpack_fields(capsule):
    """Return ``(address, device, code, bits, lanes, shape, strides, readonly)`` of a DLPack capsule.

    The capsule is not consumed: whoever uses the address keeps the capsule. Strides are in elements.
    """
    cdef DLTensor *t
    cdef DLManagedTensorVersioned *managed
    cdef bint readonly = False
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed = <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if managed.major != 1:
            raise TypeError(f"DLPack version {managed.major}.{managed.minor}, expected 1.x")
        t = &managed.dl_tensor
        readonly = managed.flags & 1
    elif PyCapsule_IsValid(capsule, "dltensor"):
        t = <DLTensor *>PyCapsule_GetPointer(capsule, "dltensor")
    else:
        raise TypeError(f"{capsule!r} is not an unused DLPack capsule")
    shape = tuple([t.shape[i] for i in range(t.ndim)])
    strides = None if t.strides == NULL else tuple([t.strides[i] for i in range(t.ndim)])
    address = <uintptr_t>t.data + t.byte_offset
    return address, t.device_type, t.code, t.bits, t.lanes, shape, strides, readonly


# ---- For tests: a thread with denormals flushed, as TensorFlow's are ---------------------------------

cdef extern from *:
    """
    #if defined(__x86_64__)
    #include <xmmintrin.h>
    static unsigned gf_get_mxcsr(void) { return _mm_getcsr(); }
    static void gf_set_mxcsr(unsigned v) { _mm_setcsr(v); }
    #else
    static unsigned gf_get_mxcsr(void) { return 0; }
    static void gf_set_mxcsr(unsigned v) { (void)v; }
    #endif
    """
    unsigned int gf_get_mxcsr() nogil
    void gf_set_mxcsr(unsigned int v) nogil


def get_mxcsr():
    """Return the calling thread's MXCSR (0 where there is none)."""
    return gf_get_mxcsr()


def set_mxcsr(unsigned int value):
    """Set the calling thread's MXCSR; for tests of the kernels' independence from it."""
    gf_set_mxcsr(value)


set_simd_level(_config.load().simd)
