#include "deadzone.h"

#include <math.h>
#include <string.h>

#include "../elements.h"
#include "float_env.h"
#include "frame.h"
#include "levels.h"

namespace gradflow {
namespace {

constexpr size_t kGroup = 32 * GF_DZ_BLOCK;
constexpr uint8_t kBlockLog2 = 5;
// Bytes that a block may take at most, see docs/wire-format.md; it may also need a segment and a group of its
// own.
constexpr size_t kMostBlockBytes = (182 + 32 * (GF_DZ_SUM_BITS - 1) + 7) / 8;
constexpr size_t kSegmentBytes = 8;
constexpr size_t kGroupBytes = 6;

size_t blocks_of(size_t n) { return (n + GF_DZ_BLOCK - 1) / GF_DZ_BLOCK; }
size_t groups_of(size_t n) { return (n + kGroup - 1) / kGroup; }

float offset_of(const gf_codec_spec &spec) { return gf_float((uint32_t)(spec.params[1] >> 32)); }

uint32_t load_u32(const uint8_t *p) {
  uint32_t u;
  memcpy(&u, p, sizeof u);
  return u;
}

void store_u32(uint8_t *p, uint32_t u) { memcpy(p, &u, sizeof u); }

// Whether segments cover n elements as they must.
bool segments_valid(const gf_segment *segments, size_t count, size_t n) {
  uint64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const gf_segment &s = segments[i];
    if (s.end <= begin || (i + 1 < count && s.end % GF_DZ_BLOCK)) return false;
    if (gf_bits(s.step) >= GF_INF_BITS) return false;  // negative, infinite or NaN
    begin = s.end;
  }
  return begin == n;
}

size_t groups_of(const gf_segment *segments, size_t count) {
  size_t groups = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    groups += groups_of((size_t)(segments[i].end - begin));
    begin = segments[i].end;
  }
  return groups;
}

// `unit` replaces the steps in the quantizer, where it is not 0.
size_t encode_segments(const gf_codec_spec &spec, int dtype, const gf_segment *segments, size_t count,
                       float unit, uint32_t code_bits, const float *x, float *residual, size_t n,
                       uint8_t *out) {
  const DefaultFloatEnv env;
  if (!segments_valid(segments, count, n)) return 0;
  uint8_t *const body = out + sizeof(Header);
  store_u32(body, (uint32_t)count);
  uint8_t *sizes = body + 4 + count * kSegmentBytes;
  uint8_t *at = sizes + 2 * groups_of(segments, count);
  bool nonfinite = false;
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = (size_t)segments[i].end;
    store_u32(body + 4 + i * kSegmentBytes, (uint32_t)blocks_of(end - begin));
    store_u32(body + 8 + i * kSegmentBytes, gf_bits(segments[i].step));
    DeadzoneEncode run = {};
    run.x = x + begin;
    run.residual = residual ? residual + begin : nullptr;
    run.n = end - begin;
    run.step = unit != 0.0f && segments[i].step > 0.0f ? unit : segments[i].step;
    run.offset = unit != 0.0f ? 0.5f : offset_of(spec);
    run.code_bits = code_bits;
    run.sizes = sizes;
    run.out = at;
    at += level().encode_deadzone(&run);
    nonfinite |= run.nonfinite;
    sizes += 2 * groups_of(end - begin);
    begin = end;
  }
  const size_t bytes = (size_t)(at - body);
  return seal_payload(spec, dtype, nonfinite ? kFlagNonfinite : 0, kBlockLog2, 0, n, bytes,
                      level().crc32c(0, body, bytes), out);
}

// Calls `visit(run)` for each segment of a body until it says no; `unit` as above.
template <typename Visit>
bool each_segment(const uint8_t *in, size_t n, float *out, float unit, bool add, Visit visit) {
  const uint8_t *const body = in + sizeof(Header);
  const size_t count = load_u32(body);
  const uint8_t *sizes = body + 4 + count * kSegmentBytes;
  size_t groups = 0, begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t blocks = load_u32(body + 4 + i * kSegmentBytes);
    groups += groups_of(blocks * GF_DZ_BLOCK);
  }
  const uint8_t *at = sizes + 2 * groups;
  for (size_t i = 0; i < count; ++i) {
    const size_t left = n - begin, elements = load_u32(body + 4 + i * kSegmentBytes) * (size_t)GF_DZ_BLOCK;
    DeadzoneDecode run = {};
    run.sizes = sizes;
    run.in = at;
    run.n = elements < left ? elements : left;
    run.out = out ? out + begin : nullptr;
    run.step = gf_float(load_u32(body + 8 + i * kSegmentBytes));
    if (unit != 0.0f && run.step > 0.0f) run.step = unit;
    run.add = add;
    if (!visit(run)) return false;
    for (size_t g = 0; g < groups_of(run.n); ++g, sizes += 2) at += (size_t)sizes[0] | (size_t)sizes[1] << 8;
    begin += run.n;
  }
  return true;
}

// Whether the body's tables fit each other and n, so that `each_segment` stays within it.
bool tables_valid(const uint8_t *body, size_t bytes, size_t n) {
  if (bytes < 4) return false;
  const uint64_t count = load_u32(body);
  if (count > blocks_of(n) || (count == 0) != (n == 0) || 4 + count * kSegmentBytes > bytes) return false;
  uint64_t blocks = 0, groups = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t own = load_u32(body + 4 + i * kSegmentBytes);
    if (own == 0 || load_u32(body + 8 + i * kSegmentBytes) >= GF_INF_BITS) return false;
    blocks += own;
    groups += (own + 31) / 32;
  }
  if (blocks != blocks_of(n)) return false;
  const uint64_t front = 4 + count * kSegmentBytes + 2 * groups;
  if (front > bytes) return false;
  uint64_t total = front;
  const uint8_t *sizes = body + 4 + count * kSegmentBytes;
  for (uint64_t g = 0; g < groups; ++g) total += (uint64_t)sizes[2 * g] | (uint64_t)sizes[2 * g + 1] << 8;
  return total == bytes;
}

bool same_segments(const uint8_t *body, const DeadzoneSteps &expected) {
  if (load_u32(body) != expected.count) return false;
  uint64_t begin = 0;
  for (size_t i = 0; i < expected.count; ++i) {
    const gf_segment &s = expected.segments[i];
    if (load_u32(body + 4 + i * kSegmentBytes) != blocks_of((size_t)(s.end - begin))) return false;
    if (load_u32(body + 8 + i * kSegmentBytes) != gf_bits(s.step)) return false;
    begin = s.end;
  }
  return true;
}

}  // namespace

const char *deadzone_fault(const gf_codec_spec &spec) {
  if (spec.bits) return "bits do not belong to this codec";
  if (spec.rounding != GF_NEAREST) return "this codec rounds to nearest only";
  if (spec.block != GF_DZ_BLOCK) return "this codec has blocks of 32";
  if ((spec.params[1] & 0xff) > GF_CONTROL_RATIO) return "unknown control";
  if ((spec.params[1] >> 8 & 0xff) > GF_SECOND_REQUANTIZE) return "unknown second encoding";
  const float offset = offset_of(spec);
  if (!(offset >= 0.0f && offset <= 0.5f)) return "offset must be from 0 to 0.5";
  double value;
  memcpy(&value, &spec.params[0], sizeof value);
  if (!(value > 0.0 && value < HUGE_VAL)) return "what is asked for must be positive";
  return nullptr;
}

size_t deadzone_max_body(size_t n) {
  return 4 + blocks_of(n) * (kMostBlockBytes + kSegmentBytes + kGroupBytes);
}

size_t deadzone_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                       uint8_t *out) {
  double multiple = 1.0;
  if ((spec.params[1] & 0xff) == GF_CONTROL_STEP) memcpy(&multiple, &spec.params[0], sizeof multiple);
  gf_segment segment = {n, n ? gf_dz_step(multiple, level().energy(x, n), (double)n) : 0.0f, 0};
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

int deadzone_check(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n,
                   const DeadzoneSteps *expected) {
  Header h;
  const int status = check_header(spec, kBlockLog2, 0, in, bytes, n, &h);
  if (status != GF_WIRE_OK) return status;
  if (h.bytes < 4 || h.bytes > deadzone_max_body(n)) return GF_WIRE_LENGTH;
  if (bytes - sizeof h < h.bytes) return GF_WIRE_TRUNCATED;
  if (bytes - sizeof h > h.bytes) return GF_WIRE_LENGTH;
  const uint8_t *const body = in + sizeof h;
  const uint32_t sent = h.crc;
  h.crc = 0;
  const uint32_t crc = level().crc32c(0, reinterpret_cast<const uint8_t *>(&h), sizeof h);
  if (level().crc32c(crc, body, (size_t)h.bytes) != sent) return GF_WIRE_CHECKSUM;
  if (!header_content_valid(h) || (h.flags & kFlagStochastic) || !tables_valid(body, (size_t)h.bytes, n))
    return GF_WIRE_CONTENT;
  if (expected && !same_segments(body, *expected)) return GF_WIRE_CODEC;
  bool nonfinite = false;
  const bool valid = each_segment(in, n, nullptr, 0.0f, false, [&](const DeadzoneDecode &run) {
    return level().check_deadzone(run, &nonfinite);
  });
  return valid && nonfinite == ((h.flags & kFlagNonfinite) != 0) ? GF_WIRE_OK : GF_WIRE_CONTENT;
}

void deadzone_decode(const uint8_t *in, float *out, size_t n, bool add) {
  each_segment(in, n, out, 0.0f, add, [](const DeadzoneDecode &run) {
    level().decode_deadzone(run);
    return true;
  });
}

int deadzone_add_codes(const gf_codec_spec &spec, const gf_segment *segments, size_t count, const uint8_t *in,
                       size_t bytes, float *acc, size_t n) {
  const DefaultFloatEnv env;
  if (!segments_valid(segments, count, n)) return GF_WIRE_CODEC;
  const DeadzoneSteps expected = {segments, count};
  const int status = deadzone_check(spec, in, bytes, n, &expected);
  if (status != GF_WIRE_OK) return status;
  each_segment(in, n, acc, 1.0f, true, [](const DeadzoneDecode &run) {
    level().decode_deadzone(run);
    return true;
  });
  return GF_WIRE_OK;
}

}  // namespace gradflow
