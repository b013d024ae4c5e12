#include <string.h>

#include "deadzone.h"
#include "float_env.h"
#include "frame.h"
#include "levels.h"

#include "../elements.h"

namespace gradflow {
namespace {

size_t max_encoded_size(void *, const gf_codec_spec *spec, size_t n) {
  return spec_fault(*spec) ? 0 : sizeof(Header) + max_body_bytes(*spec, n);
}

size_t encode(void *, const gf_codec_spec *spec, const float *x, float *residual, size_t n, uint64_t key,
              uint64_t first, uint8_t *out) {
  return encode_payload(*spec, GF_F32, x, residual, n, key, first, out);
}

int decode(void *, const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *out, size_t n) {
  return decode_payload(*spec, in, bytes, out, n, false);
}

int decode_add(void *, const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *acc, size_t n) {
  return decode_payload(*spec, in, bytes, acc, n, true);
}

uint64_t dither_key(uint64_t seed, uint64_t rank, uint64_t name_hash, uint64_t sequence, uint64_t stage) {
  return gf_dither_key(seed, rank, name_hash, sequence, stage);
}

uint32_t crc32c(uint32_t seed, const void *data, size_t bytes) {
  return level().crc32c(seed, static_cast<const uint8_t *>(data), bytes);
}

int load_f32(const void *src, int dtype, float *dst, size_t n) {
  const DefaultFloatEnv env;
  return level().load_f32(src, dtype, dst, n) ? 1 : 0;
}

void store_f32(const float *src, float scale, void *dst, int dtype, size_t n) {
  const DefaultFloatEnv env;
  level().store_f32(src, scale, dst, dtype, n);
}

void sum_f32(float *dst, const float *const *srcs, int count, float scale, size_t n) {
  const DefaultFloatEnv env;
  level().sum_f32(dst, srcs, count, scale, n);
}

void sum_f64(double *dst, const double *const *srcs, int count, double scale, size_t n) {
  const DefaultFloatEnv env;
  level().sum_f64(dst, srcs, count, scale, n);
}

double energy(const float *x, size_t n) {
  const DefaultFloatEnv env;
  return level().energy(x, n);
}

size_t encode_stepped(void *, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                      const float *x, float *residual, size_t n, uint8_t *out) {
  return deadzone_encode_stepped(*spec, GF_F32, segments, count, x, residual, n, out);
}

int add_codes(void *, const gf_codec_spec *spec, const gf_segment *segments, size_t count, const uint8_t *in,
              size_t bytes, float *acc, size_t n) {
  return deadzone_add_codes(*spec, segments, count, in, bytes, acc, n);
}

size_t encode_codes(void *, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                    const float *codes, size_t n, uint8_t *out) {
  return deadzone_encode_codes(*spec, GF_F32, segments, count, codes, n, out);
}

// Of topk: every element that is not zero.
void sum_spec(void *, const gf_codec_spec *spec, gf_codec_spec *of_sums) {
  *of_sums = *spec;
  const double all = 1.0;
  memcpy(&of_sums->params[0], &all, sizeof all);
}

const gf_codec_ops kOps = {nullptr, max_encoded_size, encode,  decode, decode_add,
                           nullptr, nullptr,          nullptr, nullptr};
const gf_codec_ops kSteppedOps = {nullptr,        max_encoded_size, encode,       decode, decode_add,
                                  encode_stepped, add_codes,        encode_codes, nullptr};
const gf_codec_ops kSparseOps = {nullptr, max_encoded_size, encode,  decode,  decode_add,
                                 nullptr, nullptr,          nullptr, sum_spec};

const gf_api kApi = {GF_API_VERSION, find_codec, dither_key, crc32c, load_f32,
                     store_f32,      sum_f32,    sum_f64,    energy};

}  // namespace

// One table serves most: the codec is in the specification.
const gf_codec_ops *find_codec(uint16_t id) {
  if (id == kDeadzone) return &kSteppedOps;
  if (id == kTopk) return &kSparseOps;
  Layout layout = {};
  return id == kSign1 || layout_of(id, &layout) ? &kOps : nullptr;
}

const gf_api *api() { return &kApi; }

}  // namespace gradflow
