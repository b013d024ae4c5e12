#include "deadzone.h"

#include <math.h>
#include <string.h>

#include "../elements.h"
#include "deadzone_body.h"
#include "float_env.h"
#include "frame.h"
#include "levels.h"

namespace gradflow {
namespace {

size_t groups_of(const gf_segment *segments, size_t count) {
  size_t groups = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    groups += dz_groups((size_t)(segments[i].end - begin));
    begin = segments[i].end;
  }
  return groups;
}

// `unit` replaces the steps in the quantizer, where it is not 0.
size_t encode_segments(const gf_codec_spec &spec, int dtype, const gf_segment *segments, size_t count,
                       float unit, uint32_t code_bits, const float *x, float *residual, size_t n,
                       uint8_t *out) {
  const DefaultFloatEnv env;
  if (!dz_segments_cover(segments, count, n)) return 0;
  uint8_t *const body = out + sizeof(Header);
  dz_store(body, (uint32_t)count);
  uint8_t *sizes = body + 4 + count * kDzSegmentBytes;
  uint8_t *at = sizes + 2 * groups_of(segments, count);
  bool nonfinite = false;
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = (size_t)segments[i].end;
    dz_store(body + 4 + i * kDzSegmentBytes, (uint32_t)dz_blocks(end - begin));
    dz_store(body + 8 + i * kDzSegmentBytes, gf_bits(segments[i].step));
    DeadzoneEncode run = {};
    run.x = x + begin;
    run.residual = residual ? residual + begin : nullptr;
    run.n = end - begin;
    run.step = unit != 0.0f && segments[i].step > 0.0f ? unit : segments[i].step;
    run.offset = unit != 0.0f ? 0.5f : dz_offset_of(spec);
    run.code_bits = code_bits;
    run.sizes = sizes;
    run.out = at;
    at += level().encode_deadzone(&run);
    nonfinite |= run.nonfinite;
    sizes += 2 * dz_groups(end - begin);
    begin = end;
  }
  const size_t packed = (size_t)(at - body);
  const size_t bytes = entropy_of(spec) ? dz_squeeze(body, packed, n) : packed;
  Header h = new_header(spec, dtype, n);
  h.flags = (uint8_t)((nonfinite ? kFlagNonfinite : 0) | (bytes < packed ? kFlagEntropy : 0));
  return seal_payload(h, bytes, level().crc32c(0, body, bytes), out);
}

// Calls `visit(run)` for each segment of a packed body until it says no; `unit` as above.
template <typename Visit>
bool each_segment(const uint8_t *body, size_t n, float *out, float unit, bool add, Visit visit) {
  const size_t count = dz_load(body);
  const uint8_t *sizes = body + 4 + count * kDzSegmentBytes;
  size_t groups = 0, begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t blocks = dz_load(body + 4 + i * kDzSegmentBytes);
    groups += dz_groups(blocks * GF_DZ_BLOCK);
  }
  const uint8_t *at = sizes + 2 * groups;
  for (size_t i = 0; i < count; ++i) {
    const size_t left = n - begin, elements = dz_load(body + 4 + i * kDzSegmentBytes) * (size_t)GF_DZ_BLOCK;
    DeadzoneDecode run = {};
    run.sizes = sizes;
    run.in = at;
    run.n = elements < left ? elements : left;
    run.out = out ? out + begin : nullptr;
    run.step = gf_float(dz_load(body + 8 + i * kDzSegmentBytes));
    if (unit != 0.0f && run.step > 0.0f) run.step = unit;
    run.add = add;
    if (!visit(run)) return false;
    for (size_t g = 0; g < dz_groups(run.n); ++g, sizes += 2) at += (size_t)sizes[0] | (size_t)sizes[1] << 8;
    begin += run.n;
  }
  return true;
}

// Whether the body's tables fit each other and n, so that `each_segment` stays within it.
bool tables_valid(const uint8_t *body, size_t bytes, size_t n) {
  size_t groups;
  if (!dz_segments_valid(body, bytes, n, &groups)) return false;
  uint64_t total = dz_front(body) + 2 * groups;
  if (total > bytes) return false;
  const uint8_t *sizes = body + dz_front(body);
  for (size_t g = 0; g < groups; ++g) total += (uint64_t)sizes[2 * g] | (uint64_t)sizes[2 * g + 1] << 8;
  return total == bytes;
}

struct Segments {
  const gf_segment *segments;
  size_t count;
};

bool same_segments(const uint8_t *body, const Segments &expected) {
  if (dz_load(body) != expected.count) return false;
  uint64_t begin = 0;
  for (size_t i = 0; i < expected.count; ++i) {
    const gf_segment &s = expected.segments[i];
    if (dz_load(body + 4 + i * kDzSegmentBytes) != dz_blocks((size_t)(s.end - begin))) return false;
    if (dz_load(body + 8 + i * kDzSegmentBytes) != gf_bits(s.step)) return false;
    begin = s.end;
  }
  return true;
}

// A packed body, which lies in the payload or was made from it.
struct Body {
  const uint8_t *at;
  std::unique_ptr<uint8_t[]> own;
};

// Everything that is to be checked before a body is decoded; with `expected`, also whether the payload has
// these segments (GF_WIRE_CODEC if not).
int open_body(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n, const Segments *expected,
              Body *opened) {
  Header h;
  const int status = check_frame(spec, in, bytes, n, 4, kFlagNonfinite | kFlagEntropy, &h);
  if (status != GF_WIRE_OK) return status;
  const uint8_t *body = in + sizeof h;
  size_t body_bytes = (size_t)h.bytes, groups;
  const bool squeezed = h.flags & kFlagEntropy;
  if (!(squeezed ? dz_segments_valid(body, body_bytes, n, &groups) : tables_valid(body, body_bytes, n)))
    return GF_WIRE_CONTENT;
  if (expected && !same_segments(body, *expected)) return GF_WIRE_CODEC;
  if (squeezed) {
    opened->own = dz_unsqueeze(body, body_bytes, n, &body_bytes);
    if (!opened->own) return GF_WIRE_CONTENT;
    body = opened->own.get();
  }
  opened->at = body;
  bool nonfinite = false;
  const bool valid = each_segment(body, n, nullptr, 0.0f, false, [&](const DeadzoneDecode &run) {
    return level().check_deadzone(run, &nonfinite);
  });
  return valid && nonfinite == ((h.flags & kFlagNonfinite) != 0) ? GF_WIRE_OK : GF_WIRE_CONTENT;
}

void decode_body(const Body &body, size_t n, float *out, float unit, bool add) {
  each_segment(body.at, n, out, unit, add, [](const DeadzoneDecode &run) {
    level().decode_deadzone(run);
    return true;
  });
}

}  // namespace

size_t deadzone_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                       uint8_t *out) {
  const float step = n ? gf_dz_step(dz_multiple_of(spec), level().energy(x, n), (double)n) : 0.0f;
  const gf_segment segment = {n, step, 0};
  return encode_segments(spec, dtype, &segment, n ? 1 : 0, 0.0f, GF_DZ_CODE_BITS, x, residual, n, out);
}

size_t deadzone_encode_stepped(const gf_codec_spec &spec, int dtype, const gf_segment *segments, size_t count,
                               const float *x, float *residual, size_t n, uint8_t *out) {
  return encode_segments(spec, dtype, segments, count, 0.0f, GF_DZ_CODE_BITS, x, residual, n, out);
}

size_t deadzone_encode_codes(const gf_codec_spec &spec, int dtype, const gf_segment *segments, size_t count,
                             const float *codes, size_t n, uint8_t *out) {
  return encode_segments(spec, dtype, segments, count, 1.0f, GF_DZ_SUM_BITS, codes, nullptr, n, out);
}

int deadzone_decode(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n,
                    bool add) {
  Body body;
  const int status = open_body(spec, in, bytes, n, nullptr, &body);
  if (status == GF_WIRE_OK) decode_body(body, n, out, 0.0f, add);
  return status;
}

int deadzone_add_codes(const gf_codec_spec &spec, const gf_segment *segments, size_t count, const uint8_t *in,
                       size_t bytes, float *acc, size_t n) {
  const DefaultFloatEnv env;
  if (!dz_segments_cover(segments, count, n)) return GF_WIRE_CODEC;
  const Segments expected = {segments, count};
  Body body;
  const int status = open_body(spec, in, bytes, n, &expected, &body);
  if (status == GF_WIRE_OK) decode_body(body, n, acc, 1.0f, true);
  return status;
}

}  // namespace gradflow
