# The C++ of kernels/, as _kernels.pyx sees it; other modules take the capsule (gf_api.h).
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from codec_api cimport gf_codec_spec, gf_segment


cdef extern from "gf_api.h" nogil:
    const char *GF_API_CAPSULE

    cdef struct gf_api:
        int version
        uint64_t (*dither_key)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) noexcept nogil
        uint32_t (*crc32c)(uint32_t, const void *, size_t) noexcept nogil
        int (*load_f32)(const void *, int, float *, size_t) noexcept nogil
        void (*store_f32)(const float *, float, void *, int, size_t) noexcept nogil
        void (*sum_f32)(float *, const float *const *, int, float, size_t) noexcept nogil
        void (*sum_f64)(double *, const double *const *, int, double, size_t) noexcept nogil
        double (*energy)(const float *, size_t) noexcept nogil


cdef extern from "kernels/frame.h" namespace "gradflow" nogil:
    const char *spec_fault(const gf_codec_spec &spec)
    size_t max_body_bytes(const gf_codec_spec &spec, size_t n)
    size_t encode_payload(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                          uint64_t key, uint64_t first, uint8_t *out)
    int decode_payload(const gf_codec_spec &spec, const uint8_t *payload, size_t size, float *out, size_t n,
                       bint add)
    const gf_api *api()


cdef extern from "kernels/deadzone.h" namespace "gradflow" nogil:
    size_t deadzone_encode_stepped(const gf_codec_spec &spec, int dtype, const gf_segment *segments,
                                   size_t count, const float *x, float *residual, size_t n, uint8_t *out)
    size_t deadzone_encode_codes(const gf_codec_spec &spec, int dtype, const gf_segment *segments,
                                 size_t count, const float *codes, size_t n, uint8_t *out)
    int deadzone_add_codes(const gf_codec_spec &spec, const gf_segment *segments, size_t count,
                           const uint8_t *payload, size_t size, float *acc, size_t n)


cdef extern from "kernels/levels.h" namespace "gradflow" nogil:
    cdef struct WaveletRun:
        const float *x
        float *out
        const float *filter
        int taps
        int levels
        size_t n
        size_t rows
        size_t width
        size_t columns
        bint inverse
        bint finite

    cdef struct Level:
        const char *name
        size_t (*encode_indices)(const int64_t *, size_t, uint64_t, uint8_t *) noexcept nogil
        bint (*decode_indices)(const uint8_t *, size_t, uint64_t, int64_t *, size_t) noexcept nogil

    const Level *const *available_levels()
    const Level &level()
    bint set_level(const char *name)


cdef extern from "kernels/wavelet.h" namespace "gradflow" nogil:
    void transform_wavelet(const WaveletRun &run) except +
