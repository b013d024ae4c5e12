// The codecs' functions of gpu_api.h, put together from kernels.
#include "library.h"

#include "codecs.cuh"

namespace gradflow_gpu {
namespace {

using gradflow::kDeadzone;
using gradflow::kSign1;

size_t padded(size_t bytes) { return (bytes + kWorkBytes - 1) / kWorkBytes * kWorkBytes; }

int begin(const gf_codec_spec &spec, size_t n, void *scratch, size_t scratch_size) {
  if (gradflow::spec_fault(spec)) return GF_GPU_BAD_ARGUMENT;
  if (codec_fault(&spec)) return GF_GPU_NO_KERNEL;
  if (scratch_size < codec_scratch_bytes(&spec, n) || (uintptr_t)scratch % GF_GPU_ALIGNMENT)
    return GF_GPU_SCRATCH;
  return GF_GPU_OK;
}

bool loads(int dtype) { return dtype == GF_F32 || dtype == GF_F16 || dtype == GF_BF16; }

int encode_segments(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int header_dtype,
                    int dtype, const void *x, float *residual, size_t n, float unit, uint8_t *out,
                    uint64_t *size, void *scratch, size_t scratch_size, gpuStream_t stream) {
  const int fault = begin(*spec, n, scratch, scratch_size);
  if (fault) return fault;
  if (spec->id != kDeadzone || !loads(dtype) || !gradflow::dz_segments_cover(segments, count, n))
    return GF_GPU_BAD_ARGUMENT;
  size_t groups = 0, at = 0;
  for (size_t i = 0; i < count; ++i) {
    groups += gradflow::dz_groups((size_t)segments[i].end - at);
    at = (size_t)segments[i].end;
  }
  const DzScratch parts = dz_scratch(scratch, n);
  const int error = fill(scratch, 0, padded(sizeof(Work)), stream);
  if (error) return error;
  uint8_t *const body = out + sizeof(Header);
  dz_put_segments(segments, count, body, parts, stream);
  dz_encode(*spec, count, groups, dtype, x, residual, n, unit, body, parts, stream);
  seal(gradflow::new_header(*spec, header_dtype, n), out, size, parts.work,
       gradflow::max_body_bytes(*spec, n) / 8, stream);
  return last_error();
}

// Of a payload of deadzone. With segments, it must have these, and integers are added.
int decode_segments(const gf_codec_spec *spec, const gf_segment *segments, size_t count, const uint8_t *in,
                    size_t bytes, float *out, size_t n, int add, int32_t *status, void *scratch,
                    gpuStream_t stream) {
  const DzScratch parts = dz_scratch(scratch, n);
  const size_t most = gradflow::max_body_bytes(*spec, n);
  open_payload(gradflow::new_header(*spec, GF_F32, n), in, bytes, 4, most, status, parts.work, stream);
  if (segments) dz_put_segments(segments, count, nullptr, parts, stream);
  dz_check(in, n, segments ? &count : nullptr, status, parts, stream);
  Regions r = {};
  r.codec = spec->id;
  r.code_bits = 32;
  judge_payload(r, in, bytes < most ? bytes : most, status, parts.work, stream);
  dz_decode(in, out, n, segments ? 1.0f : 0.0f, add, status, parts, stream);
  return last_error();
}

int decode_signs(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n, int add,
                 int32_t *status, void *scratch, gpuStream_t stream) {
  const Sign1Scratch parts = sign1_scratch(scratch, spec, n);
  const size_t most = gradflow::max_body_bytes(spec, n);
  open_payload(gradflow::new_header(spec, GF_F32, n), in, bytes, gradflow::least_body_bytes(spec, n), most,
               status, parts.work, stream);
  sign1_check(spec, in, n, status, parts, stream);
  Regions r = {};
  r.codec = spec.id;
  r.code_bits = 32;
  judge_payload(r, in, bytes < most ? bytes : most, status, parts.work, stream);
  sign1_decode(spec, in, out, n, add, status, parts, stream);
  return last_error();
}

__global__ void body_kernel(Work *work, uint64_t bytes) {
  if (threadIdx.x == 0) work->body = bytes;
}

}  // namespace

const char *codec_fault(const gf_codec_spec *spec) {
  const char *fault = gradflow::spec_fault(*spec);
  if (fault) return fault;
  if (spec->id > kSign1) return "this codec runs on the CPU only";
  if (gradflow::entropy_of(*spec))
    return "the entropy stage runs on the CPU only: use entropy=False, or encode on the CPU";
  return nullptr;
}

size_t codec_max_encoded_size(const gf_codec_spec *spec, size_t n) {
  return gradflow::spec_fault(*spec) ? 0 : sizeof(Header) + gradflow::max_body_bytes(*spec, n);
}

size_t codec_scratch_bytes(const gf_codec_spec *spec, size_t n) {
  if (gradflow::spec_fault(*spec)) return 0;
  if (spec->id == kSign1) return sign1_scratch(nullptr, *spec, n).bytes;
  return spec->id == kDeadzone ? dz_scratch(nullptr, n).bytes : kWorkBytes;
}

int codec_encode(const gf_codec_spec *spec, int dtype, const void *x, float *residual, size_t n, uint64_t key,
                 uint64_t first, uint8_t *out, uint64_t *size, void *scratch, size_t scratch_size,
                 void *stream_) {
  const gpuStream_t stream = (gpuStream_t)stream_;
  const int fault = begin(*spec, n, scratch, scratch_size);
  if (fault) return fault;
  if (!loads(dtype) || first % spec->block) return GF_GPU_BAD_ARGUMENT;
  const int error = fill(scratch, 0, padded(sizeof(Work)), stream);
  if (error) return error;
  uint8_t *const body = out + sizeof(Header);
  Work *const work = (Work *)scratch;
  size_t most = gradflow::max_body_bytes(*spec, n);
  if (spec->id == kDeadzone) {
    const DzScratch parts = dz_scratch(scratch, n);
    dz_measure(*spec, x, dtype, n, body, parts, stream);
    dz_encode(*spec, n ? 1 : 0, gradflow::dz_groups(n), dtype, x, residual, n, 0.0f, body, parts, stream);
    most /= 8;  // what is usual: this only says how many blocks read it
  } else if (spec->id == kSign1) {
    sign1_encode(*spec, dtype, x, residual, n, body, sign1_scratch(scratch, *spec, n), stream);
  } else {
    encode_blocks(*spec, dtype, x, residual, n, key, first, body, work, stream);
    GPU_LAUNCH(body_kernel, 1, kWarp, stream, work, most);
  }
  seal(gradflow::new_header(*spec, dtype, n), out, size, work, most, stream);
  return last_error();
}

int codec_decode(const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *out, size_t n, int add,
                 int32_t *status, void *scratch, size_t scratch_size, void *stream_) {
  const gpuStream_t stream = (gpuStream_t)stream_;
  const int fault = begin(*spec, n, scratch, scratch_size);
  if (fault) return fault;
  Work *const work = (Work *)scratch;
  const Header expected = gradflow::new_header(*spec, GF_F32, n);
  const size_t body = gradflow::max_body_bytes(*spec, n);
  if (spec->id == kDeadzone)
    return decode_segments(spec, nullptr, 0, in, bytes, out, n, add, status, scratch, stream);
  if (spec->id == kSign1) return decode_signs(*spec, in, bytes, out, n, add, status, scratch, stream);
  open_payload(expected, in, bytes, gradflow::least_body_bytes(*spec, n), body, status, work, stream);
  Layout layout = {};
  gradflow::layout_of(spec->id, &layout);
  Regions r = {};
  r.scale_bytes = gradflow::blocks(*spec, layout, n) * (size_t)layout.scale_bytes;
  r.code_bytes = gradflow::codes_size(layout, n);
  r.codec = spec->id;
  r.code_bits = layout.code_bits;
  r.scale_width = layout.scale_bytes;
  r.last_bits = (int)(n * (size_t)layout.code_bits % 8);
  judge_payload(r, in, body, status, work, stream);
  decode_blocks(*spec, in + sizeof(Header), out, n, add, status, stream);
  return last_error();
}

int codec_encode_stepped(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int dtype,
                         const void *x, float *residual, size_t n, uint8_t *out, uint64_t *size,
                         void *scratch, size_t scratch_size, void *stream) {
  return encode_segments(spec, segments, count, dtype, dtype, x, residual, n, 0.0f, out, size, scratch,
                         scratch_size, (gpuStream_t)stream);
}

int codec_encode_codes(const gf_codec_spec *spec, const gf_segment *segments, size_t count, int dtype,
                       const float *codes, size_t n, uint8_t *out, uint64_t *size, void *scratch,
                       size_t scratch_size, void *stream) {
  return encode_segments(spec, segments, count, dtype, GF_F32, codes, nullptr, n, 1.0f, out, size, scratch,
                         scratch_size, (gpuStream_t)stream);
}

int codec_add_codes(const gf_codec_spec *spec, const gf_segment *segments, size_t count, const uint8_t *in,
                    size_t bytes, float *acc, size_t n, int32_t *status, void *scratch, size_t scratch_size,
                    void *stream) {
  const int fault = begin(*spec, n, scratch, scratch_size);
  if (fault) return fault;
  if (spec->id != kDeadzone || !gradflow::dz_segments_cover(segments, count, n)) return GF_GPU_BAD_ARGUMENT;
  return decode_segments(spec, segments, count, in, bytes, acc, n, 1, status, scratch, (gpuStream_t)stream);
}

}  // namespace gradflow_gpu
