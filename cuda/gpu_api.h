// The one C interface between the GPU kernels and whoever calls them (cython_ext/_cuda.pyx). It exists three
// times, from the same sources: compiled by nvcc, by hipcc, and by the host compiler over an emulator of
// blocks and threads (for tests). Each is a shared library of its own that exports `gf_gpu_api`, so that none
// is needed to load another.
//
// Unless said otherwise, pointers are addresses in the device's memory, and everything with a stream is
// asynchronous on it: it begins when what was put there before has ended. Nothing with a stream allocates.
// Functions return 0, or an error that `error_text` puts into words: the runtime's own, or one below 0 of
// ours.
#ifndef GF_GPU_API_H
#define GF_GPU_API_H

#include <stddef.h>
#include <stdint.h>

#include "../cython_ext/gf_api.h"

#define GF_GPU_API_VERSION 2
#define GF_GPU_API_SYMBOL "gf_gpu_library"

enum gf_gpu_error {
  GF_GPU_OK = 0,
  GF_GPU_BAD_ARGUMENT = -1,  // a specification, a dtype or a segment that cannot be
  GF_GPU_NO_KERNEL = -2,     // a codec, or an option of one, that these kernels do not have
  GF_GPU_SCRATCH = -3        // scratch is too small, or not aligned to GF_GPU_ALIGNMENT
};

// What a decoder may answer besides a gf_wire_status: the payload's header and checksum are right, but its
// body is entropy coded, which only the CPU reads.
#define GF_GPU_WIRE_ENTROPY 100

#define GF_GPU_ALIGNMENT 16  // of scratch

enum gf_gpu_copy { GF_GPU_TO_DEVICE = 1, GF_GPU_TO_HOST = 2, GF_GPU_WITHIN = 3 };

// A tensor that lies in a bucket, from element `offset` of it on.
struct gf_piece {
  uint64_t address;
  uint64_t count;   // elements
  uint64_t offset;  // in the bucket; ascending from piece to piece, none overlaps another
  uint32_t dtype;   // gf_dtype, not float64
  uint32_t reserved;
};

// A wavelet transform of n elements: of a line of `width` (rows is 0), or of the upper left of a matrix with
// rows of `columns`; what it makes, and in which order, is told in hvd_gradflow/device/wavelet.py.
struct gf_wavelet {
  float filter[8];  // the low-pass one of the decomposition
  uint32_t taps, levels;
  uint64_t n, rows, width, columns;
  uint32_t inverse;
  uint32_t reserved;
};

// Row targets[i] becomes the XOR of rows entries[begins[i]] to entries[begins[i + 1] - 1]; the tables lie on
// the device.
struct gf_xor_lists {
  const uint32_t *targets, *begins, *entries;
  uint32_t count;  // begins has one more
  uint32_t reserved;
};

struct gf_gpu_api {
  int version;       // GF_GPU_API_VERSION
  const char *name;  // "cuda", "hip", "emulated"
  int dlpack_type;   // DLDeviceType of its memory
  const char *(*error_text)(int error);

  // ---- Devices. The current device is one of the calling thread; what follows goes to it.
  int (*device_count)(int *count);
  int (*device_name)(int device, char *text, size_t size);
  int (*set_device)(int device);
  int (*current_device)(int *device);
  // As set_device, for going back to what was current: does nothing where it would make the runtime start
  // something on a device that this process does not use.
  int (*restore_device)(int device);
  // An error if the current device cannot run these kernels, as one older than they were built for.
  int (*check_device)(void);
  // Said once by a thread that works beside the program's own: what it calls is nobody's graph to capture.
  int (*work_apart)(void);

  // ---- Memory
  int (*allocate)(size_t bytes, void **address);
  int (*release)(void *address);
  int (*allocate_host)(size_t bytes, void **address);  // pinned: copies from and to it are asynchronous
  int (*release_host)(void *address);
  // The device on which `address` lies; -1: it is the host's memory, pinned or not.
  int (*device_of)(const void *address, int *device);
  // `kind`: gf_gpu_copy. With `wait` the call returns when the copy is done.
  int (*copy)(void *target, const void *source, size_t bytes, int kind, void *stream, int wait);
  int (*fill)(void *target, int byte, size_t bytes, void *stream);

  // ---- Streams and events. A null stream is the device's default one.
  int (*stream_create)(void **stream);
  int (*stream_destroy)(void *stream);
  int (*stream_synchronize)(void *stream);
  int (*stream_wait)(void *stream, void *event);
  int (*event_create)(void **event);
  int (*event_destroy)(void *event);
  int (*event_record)(void *event, void *stream);
  int (*event_done)(void *event, int *done);
  int (*event_synchronize)(void *event);
  int (*event_seconds)(void *begin, void *end, double *seconds);
  // Keeps the stream busy; tests of stream order and benchmarks put it in front of kernels.
  int (*delay)(double seconds, void *stream);

  // ---- Codecs. What they write is byte for byte what the CPU's write (docs/wire-format.md).
  // Null if these kernels take the specification, otherwise why not (static text).
  const char *(*spec_fault)(const gf_codec_spec *spec);
  size_t (*max_encoded_size)(const gf_codec_spec *spec, size_t n);
  // Bytes of scratch that suffice for any one of the functions below, for n elements; kernels on one stream
  // may share it. 0 if the specification has a fault.
  size_t (*scratch_bytes)(const gf_codec_spec *spec, size_t n);
  // The whole payload, header and CRC32C included; its bytes are counted in *size. `dtype` is x's own
  // (gf_dtype; not float64) and goes into the header. residual may be null; otherwise it becomes what was
  // lost.
  int (*encode)(const gf_codec_spec *spec, int dtype, const void *x, float *residual, size_t n, uint64_t key,
                uint64_t first, uint8_t *out, uint64_t *size, void *scratch, size_t scratch_size,
                void *stream);
  // Checks the payload of `bytes` bytes as the CPU does; *status gets the gf_wire_status. If that is not
  // GF_WIRE_OK nothing is written to `out`.
  int (*decode)(const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *out, size_t n, int add,
                int32_t *status, void *scratch, size_t scratch_size, void *stream);
  // deadzone with steps that are given. `segments` lie in host memory; they are read before the call returns.
  int (*encode_stepped)(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int dtype,
                        const void *x, float *residual, size_t n, uint8_t *out, uint64_t *size, void *scratch,
                        size_t scratch_size, void *stream);
  int (*add_codes)(const gf_codec_spec *spec, const gf_segment *segments, size_t count, const uint8_t *in,
                   size_t bytes, float *acc, size_t n, int32_t *status, void *scratch, size_t scratch_size,
                   void *stream);
  int (*encode_codes)(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int dtype,
                      const float *codes, size_t n, uint8_t *out, uint64_t *size, void *scratch,
                      size_t scratch_size, void *stream);

  // ---- Arrays
  size_t (*statistics_scratch_bytes)(size_t n);
  // out[0] = energy of x, out[1] = energy of residual (0 if that is null): sums of squares in the CPU's
  // order, hence the same numbers. x is float32.
  int (*statistics)(const float *x, const float *residual, size_t n, double *out, void *scratch,
                    size_t scratch_size, void *stream);
  // The pieces into target[0 .. n), as float32, zeros between them; *finite becomes 0 if one of the elements
  // is not finite, otherwise 1. `pieces` (count of them) lie on the device. Null target: only looks.
  int (*gather)(const gf_piece *pieces, size_t count, float *target, size_t n, int32_t *finite, void *stream);
  // source[0 .. n) * scale into the pieces, each rounded to nearest even.
  int (*scatter)(const float *source, float scale, const gf_piece *pieces, size_t count, size_t n,
                 void *stream);
  // dst = (a + b) * scale; null b: a * scale. dst may be a or b; null: only looks. `finite` (or null) becomes
  // 0 if an element of a + b, before the factor, is not finite; otherwise it stays what it was.
  int (*sum)(float *dst, const float *a, const float *b, float scale, size_t n, int32_t *finite,
             void *stream);
  // For tensor i, which has elements ends[i - 1] to ends[i] of both arrays: out[2 i] = energy of x, out[2 i +
  // 1] = energy of residual (0 if that is null), each in the CPU's order, counted from the tensor's
  // beginning. `ends` (count of them, ascending) lie in host memory; they are read before the call returns.
  int (*energies)(const float *x, const float *residual, const uint64_t *ends, size_t count, double *out,
                  void *stream);
  // x[i] *= the step of its segment. `segments` (ends ascending, at any element) lie in host memory; they are
  // read before the call returns.
  int (*scale_segments)(float *x, const gf_segment *segments, size_t count, void *stream);
  // Infinities become the largest float of their sign; with `finite` (or null) only if *finite is not 0.
  int (*bound)(float *x, size_t n, const int32_t *finite, void *stream);
  // Finite elements beyond `largest` become it, with their sign.
  int (*saturate)(float *x, size_t n, float largest, void *stream);
  // r = values[i] - arrives[i]; where r is finite and not 0: residual[i] += r, infinities as in `bound`.
  int (*owe)(float *residual, const float *values, const float *arrives, size_t n, void *stream);

  // ---- Wavelets
  size_t (*wavelet_scratch_bytes)(size_t n);
  // The transform of x into out, which must not overlap. What is too large becomes the largest float of its
  // sign; with `finite` (or null) only if *finite is not 0, which says so of x.
  int (*wavelet)(const struct gf_wavelet *run, const float *x, float *out, const int32_t *finite,
                 void *scratch, size_t scratch_size, void *stream);

  // ---- Erasure code (docs/ldpc.md)
  // The first `bytes` bytes of rows, `in_pitch` and `out_pitch` bytes from one to the next. `ordered`: one
  // list after another, and `in` may be `out`; otherwise no list may read what another writes. Nothing checks
  // the tables.
  int (*xor_lists)(const struct gf_xor_lists *lists, const uint8_t *in, size_t in_pitch, uint8_t *out,
                   size_t out_pitch, size_t bytes, int ordered, void *stream);
};

#ifdef __cplusplus
extern "C"
#endif
    const struct gf_gpu_api *
    gf_gpu_library(void);

#endif
