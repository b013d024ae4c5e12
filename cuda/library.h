// The functions behind gpu_api.h, which library.cu puts into its table.
#ifndef GF_GPU_LIBRARY_H
#define GF_GPU_LIBRARY_H

#include "gpu_api.h"
#include "gpu_runtime.h"

namespace gradflow_gpu {

// ---- The runtime: runtime.cu, or emulator/runtime.cpp
extern const char *const kLibraryName;
extern const int kLibraryDlpackType;
// Null for errors that are not ours.
const char *own_error_text(int error);
const char *error_text(int error);
int device_count(int *count);
int device_name(int device, char *text, size_t size);
int set_device(int device);
int current_device(int *device);
int restore_device(int device);
int check_device();
int work_apart();
int allocate(size_t bytes, void **address);
int release(void *address);
int allocate_host(size_t bytes, void **address);
int release_host(void *address);
int device_of(const void *address, int *device);
int copy(void *target, const void *source, size_t bytes, int kind, void *stream, int wait);
int stream_create(void **stream);
int stream_destroy(void *stream);
int stream_synchronize(void *stream);
int stream_wait(void *stream, void *event);
int event_create(void **event);
int event_destroy(void *event);
int event_record(void *event, void *stream);
int event_done(void *event, int *done);
int event_synchronize(void *event);
int event_seconds(void *begin, void *end, double *seconds);
int delay(double seconds, void *stream);
// The error of the launches so far on this thread, which is then forgotten.
int last_error();
int fill(void *target, int byte, size_t bytes, void *stream);

// ---- Codecs: codecs.cu
const char *codec_fault(const gf_codec_spec *spec);
size_t codec_max_encoded_size(const gf_codec_spec *spec, size_t n);
size_t codec_scratch_bytes(const gf_codec_spec *spec, size_t n);
int codec_encode(const gf_codec_spec *spec, int dtype, const void *x, float *residual, size_t n, uint64_t key,
                 uint64_t first, uint8_t *out, uint64_t *size, void *scratch, size_t scratch_size,
                 void *stream);
int codec_decode(const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *out, size_t n, int add,
                 int32_t *status, void *scratch, size_t scratch_size, void *stream);
int codec_encode_stepped(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int dtype,
                         const void *x, float *residual, size_t n, uint8_t *out, uint64_t *size,
                         void *scratch, size_t scratch_size, void *stream);
int codec_add_codes(const gf_codec_spec *spec, const gf_segment *segments, size_t count, const uint8_t *in,
                    size_t bytes, float *acc, size_t n, int32_t *status, void *scratch, size_t scratch_size,
                    void *stream);
int codec_encode_codes(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int dtype,
                       const float *codes, size_t n, uint8_t *out, uint64_t *size, void *scratch,
                       size_t scratch_size, void *stream);

// ---- Wavelets: wavelet.cu
size_t wavelet_scratch_bytes(size_t n);
int wavelet(const gf_wavelet *run, const float *x, float *out, const int32_t *finite, void *scratch,
            size_t scratch_size, void *stream);

// ---- Erasure code: ldpc.cu
int xor_lists(const gf_xor_lists *lists, const uint8_t *in, size_t in_pitch, uint8_t *out, size_t out_pitch,
              size_t bytes, int ordered, void *stream);

}  // namespace gradflow_gpu

#endif
