// The table of gpu_api.h.
#include "library.h"

#include "codecs.cuh"

namespace gradflow_gpu {
namespace {

size_t statistics_scratch_bytes(size_t n) { return 2 * sizeof(double) * energy_chunks(n) + sizeof(double); }

int statistics(const float *x, const float *residual, size_t n, double *out, void *scratch,
               size_t scratch_size, void *stream) {
  if (scratch_size < statistics_scratch_bytes(n) || (uintptr_t)scratch % sizeof(double))
    return GF_GPU_SCRATCH;
  energies(x, GF_F32, residual, n, out, (double *)scratch, (gpuStream_t)stream);
  return last_error();
}

int gather(const gf_piece *pieces, size_t count, float *target, size_t n, int32_t *finite, void *stream) {
  gather_pieces(pieces, count, target, n, finite, (gpuStream_t)stream);
  return last_error();
}

int scatter(const float *source, float scale, const gf_piece *pieces, size_t count, size_t n, void *stream) {
  scatter_pieces(source, scale, pieces, count, n, (gpuStream_t)stream);
  return last_error();
}

int sum(float *dst, const float *a, const float *b, float scale, size_t n, int32_t *finite, void *stream) {
  sum_two(dst, a, b, scale, n, finite, (gpuStream_t)stream);
  return last_error();
}

int energies_of_tensors(const float *x, const float *residual, const uint64_t *ends, size_t count,
                        double *out, void *stream) {
  for (size_t i = 1; i < count; ++i)
    if (ends[i] < ends[i - 1]) return GF_GPU_BAD_ARGUMENT;
  tensor_energies(x, residual, ends, count, out, (gpuStream_t)stream);
  return last_error();
}

int scale_segments(float *x, const gf_segment *segments, size_t count, void *stream) {
  for (size_t i = 1; i < count; ++i)
    if (segments[i].end < segments[i - 1].end) return GF_GPU_BAD_ARGUMENT;
  scale_by_steps(x, segments, count, (gpuStream_t)stream);
  return last_error();
}

int bound(float *x, size_t n, const int32_t *finite, void *stream) {
  bound_infinities(x, n, finite, (gpuStream_t)stream);
  return last_error();
}

int saturate(float *x, size_t n, float largest, void *stream) {
  saturate_finite(x, n, largest, (gpuStream_t)stream);
  return last_error();
}

int owe(float *residual, const float *values, const float *arrives, size_t n, void *stream) {
  owe_difference(residual, values, arrives, n, (gpuStream_t)stream);
  return last_error();
}

const gf_gpu_api kApi = {GF_GPU_API_VERSION,
                         kLibraryName,
                         kLibraryDlpackType,
                         error_text,
                         device_count,
                         device_name,
                         set_device,
                         current_device,
                         restore_device,
                         check_device,
                         work_apart,
                         allocate,
                         release,
                         allocate_host,
                         release_host,
                         device_of,
                         copy,
                         fill,
                         stream_create,
                         stream_destroy,
                         stream_synchronize,
                         stream_wait,
                         event_create,
                         event_destroy,
                         event_record,
                         event_done,
                         event_synchronize,
                         event_seconds,
                         delay,
                         codec_fault,
                         codec_max_encoded_size,
                         codec_scratch_bytes,
                         codec_encode,
                         codec_decode,
                         codec_encode_stepped,
                         codec_add_codes,
                         codec_encode_codes,
                         statistics_scratch_bytes,
                         statistics,
                         gather,
                         scatter,
                         sum,
                         energies_of_tensors,
                         scale_segments,
                         bound,
                         saturate,
                         owe,
                         wavelet_scratch_bytes,
                         wavelet,
                         xor_lists};

}  // namespace

const char *own_error_text(int error) {
  switch (error) {
    case GF_GPU_OK:
      return "no error";
    case GF_GPU_BAD_ARGUMENT:
      return "an argument that cannot be";
    case GF_GPU_NO_KERNEL:
      return "these kernels do not have that codec, or that option of it";
    case GF_GPU_SCRATCH:
      return "scratch is too small or not aligned";
    default:
      return nullptr;
  }
}

}  // namespace gradflow_gpu

extern "C" __attribute__((visibility("default"))) const struct gf_gpu_api *gf_gpu_library(void) {
  return &gradflow_gpu::kApi;
}
