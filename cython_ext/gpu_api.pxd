# The structure of functions that a library of cuda/ hands over, as in cuda/gpu_api.h.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from codec_api cimport gf_codec_spec, gf_segment


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

ctypedef const gf_gpu_api *(*library_function)() noexcept nogil
