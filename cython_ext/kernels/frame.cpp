#include "frame.h"

#include <string.h>

#include "code_body.h"
#include "crc32c.h"
#include "deadzone.h"
#include "float_env.h"
#include "levels.h"
#include "sign1.h"
#include "topk.h"

namespace gradflow {
namespace {

// Codes are checksummed a tile at a time, while they are in the first-level cache.
constexpr size_t kTileBytes = 8192;

bool encode_run(const gf_codec_spec &spec, const EncodeRun &run) {
  switch (spec.id) {
    case kNone:
      return level().encode_none(run);
    case kFp16:
      return level().encode_fp16(run);
    case kBf16:
      return level().encode_bf16(run);
    case kLog4:
      return level().encode_log4(run);
    default:
      return level().encode_uniform(spec.bits, run);
  }
}

void decode_run(const gf_codec_spec &spec, const DecodeRun &run) {
  switch (spec.id) {
    case kNone:
      return level().decode_none(run);
    case kFp16:
      return level().decode_fp16(run);
    case kBf16:
      return level().decode_bf16(run);
    case kLog4:
      return level().decode_log4(run);
    default:
      return level().decode_uniform(spec.bits, run);
  }
}

bool scales_valid(const gf_codec_spec &spec, const Layout &layout, const uint8_t *scales, size_t count,
                  bool *nonfinite) {
  bool valid = true, special = false;
  if (layout.scale_bytes == 4) {
    for (size_t i = 0; i < count; ++i) {
      uint32_t u;
      memcpy(&u, scales + 4 * i, 4);
      const bool nan = u == 0x7fc00000u;
      special |= nan;
      valid &= nan | (u < 0x7f800000u);
    }
  } else {
    const uint8_t lowest = spec.id == kFp16 ? 15 : 7;
    for (size_t i = 0; i < count; ++i) {
      special |= scales[i] == 255;
      valid &= (scales[i] == 0) | (scales[i] >= lowest);
    }
  }
  *nonfinite = special;
  return valid;
}

// The last byte may have room for more codes than there are elements; it must be zero there.
bool padding_zero(const Layout &layout, const uint8_t *codes, size_t n) {
  const size_t used = n * (size_t)layout.code_bits % 8;
  return used == 0 || codes[codes_size(layout, n) - 1] >> used == 0;
}

// Codes, which lie in the payload or were made from it.
struct Codes {
  const uint8_t *at;
  std::unique_ptr<uint8_t[]> own;
};

// Of codecs with a layout: everything there is to be checked before a payload is decoded.
int open_payload(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n, Codes *opened) {
  Header h;
  Layout layout = {};
  layout_of(spec.id, &layout);
  const int status = check_header(spec, in, bytes, n, &h);
  if (status != GF_WIRE_OK) return status;
  if (!length_fits(h, least_body_bytes(spec, n), max_body_bytes(spec, n))) return GF_WIRE_LENGTH;
  if (bytes - sizeof h < h.bytes) return GF_WIRE_TRUNCATED;
  if (bytes - sizeof h > h.bytes) return GF_WIRE_LENGTH;

  const size_t scale_bytes = blocks(spec, layout, n) * (size_t)layout.scale_bytes;
  const uint8_t *const scales = in + sizeof h;
  const uint8_t *const codes = scales + scale_bytes;
  const size_t code_bytes = h.bytes - scale_bytes;
  const bool squeezed = h.flags & kFlagEntropy;
  const uint32_t expected = h.crc;
  h.crc = 0;
  uint32_t crc = level().crc32c(0, reinterpret_cast<const uint8_t *>(&h), sizeof h);
  crc = level().crc32c(crc, scales, scale_bytes);
  bool valid = true;
  for (size_t begin = 0; begin < code_bytes; begin += kTileBytes) {
    const size_t size = code_bytes - begin < kTileBytes ? code_bytes - begin : kTileBytes;
    crc = level().crc32c(crc, codes + begin, size);
    if (layout.code_bits <= 8 && !squeezed)
      valid &= level().codes_valid(layout.code_bits, codes + begin, size);
  }
  if (crc != expected) return GF_WIRE_CHECKSUM;
  if (!header_content_valid(h, known_flags(h.codec))) return GF_WIRE_CONTENT;
  bool nonfinite = false;
  if (!valid || !scales_valid(spec, layout, scales, blocks(spec, layout, n), &nonfinite))
    return GF_WIRE_CONTENT;
  if (layout.scale_bytes && nonfinite != ((h.flags & kFlagNonfinite) != 0)) return GF_WIRE_CONTENT;
  opened->at = codes;
  if (!squeezed) return padding_zero(layout, codes, n) ? GF_WIRE_OK : GF_WIRE_CONTENT;
  opened->own = unsqueeze_body(spec, layout, scales, h.bytes, n);
  opened->at = opened->own.get();
  return opened->own ? GF_WIRE_OK : GF_WIRE_CONTENT;
}

}  // namespace

size_t encode_payload(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                      uint64_t key, uint64_t first, uint8_t *out) {
  const DefaultFloatEnv env;
  Layout layout = {};
  if (spec_fault(spec)) return 0;
  if (spec.id == kDeadzone) return deadzone_encode(spec, dtype, x, residual, n, out);
  if (spec.id == kSign1) return sign1_encode(spec, dtype, x, residual, n, out);
  if (spec.id == kTopk) return topk_encode(spec, dtype, x, residual, n, out);
  layout_of(spec.id, &layout);
  uint8_t *const scales = out + sizeof(Header);
  const size_t scale_bytes = blocks(spec, layout, n) * (size_t)layout.scale_bytes;
  uint8_t *const codes = scales + scale_bytes;
  const size_t in_tile = kTileBytes * 8 / (size_t)layout.code_bits;  // a power of two, as is the block
  const size_t tile = spec.block > in_tile ? spec.block : in_tile;
  bool nonfinite = false;
  uint32_t crc_codes = 0;
  for (size_t begin = 0; begin < n; begin += tile) {
    EncodeRun run;
    run.x = x + begin;
    run.residual = residual ? residual + begin : nullptr;
    run.n = n - begin < tile ? n - begin : tile;
    run.block = spec.block;
    run.stochastic = spec.rounding == GF_STOCHASTIC;
    run.key = key;
    run.first = first + begin;
    run.scales = scales + begin / spec.block * (size_t)layout.scale_bytes;
    run.codes = codes + codes_size(layout, begin);
    nonfinite |= encode_run(spec, run);
    crc_codes = level().crc32c(crc_codes, run.codes, codes_size(layout, run.n));
  }
  const size_t bytes = codes_size(layout, n);
  Header h = new_header(spec, dtype, n);
  if (nonfinite) h.flags |= kFlagNonfinite;
  const size_t made = entropy_of(spec) ? squeeze_body(spec, layout, scales, n) : scale_bytes + bytes;
  if (made < scale_bytes + bytes) {
    h.flags |= kFlagEntropy;
    return seal_payload(h, made, level().crc32c(0, scales, made), out);
  }
  const uint32_t crc_scales = level().crc32c(0, scales, scale_bytes);
  return seal_payload(h, scale_bytes + bytes, crc32c_combine(crc_scales, crc_codes, bytes), out);
}

size_t seal_payload(Header h, size_t body, uint32_t crc_body, uint8_t *out) {
  h.bytes = body;
  const uint32_t crc_header = level().crc32c(0, reinterpret_cast<const uint8_t *>(&h), sizeof h);
  h.crc = crc32c_combine(crc_header, crc_body, body);
  memcpy(out, &h, sizeof h);
  return sizeof h + body;
}

int check_header(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n, Header *header) {
  if (bytes < sizeof *header) return GF_WIRE_TRUNCATED;
  memcpy(header, in, sizeof *header);
  return header_status(*header, new_header(spec, GF_F32, n));
}

int check_frame(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n, size_t least, int flags,
                Header *header) {
  const int status = check_header(spec, in, bytes, n, header);
  if (status != GF_WIRE_OK) return status;
  Header h = *header;
  if (h.bytes < least || h.bytes > max_body_bytes(spec, n)) return GF_WIRE_LENGTH;
  if (bytes - sizeof h < h.bytes) return GF_WIRE_TRUNCATED;
  if (bytes - sizeof h > h.bytes) return GF_WIRE_LENGTH;
  h.crc = 0;
  const uint32_t crc = level().crc32c(0, reinterpret_cast<const uint8_t *>(&h), sizeof h);
  if (level().crc32c(crc, in + sizeof h, (size_t)h.bytes) != header->crc) return GF_WIRE_CHECKSUM;
  return header_content_valid(h, flags) ? GF_WIRE_OK : GF_WIRE_CONTENT;
}

int decode_payload(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n,
                   bool add) {
  const DefaultFloatEnv env;
  if (spec_fault(spec)) return GF_WIRE_CODEC;
  if (spec.id == kDeadzone) return deadzone_decode(spec, in, bytes, out, n, add);
  if (spec.id == kSign1) return sign1_decode(spec, in, bytes, out, n, add);
  if (spec.id == kTopk) return topk_decode(spec, in, bytes, out, n, add);
  Codes codes;
  const int status = open_payload(spec, in, bytes, n, &codes);
  if (status != GF_WIRE_OK) return status;
  Layout layout = {};
  layout_of(spec.id, &layout);
  DecodeRun run;
  run.scales = in + sizeof(Header);
  run.codes = codes.at;
  run.out = out;
  run.n = n;
  run.block = spec.block;
  run.add = add;
  decode_run(spec, run);
  return GF_WIRE_OK;
}

}  // namespace gradflow
