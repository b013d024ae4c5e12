// Where things lie in a payload, as docs/wire-format.md describes it: the header, the sizes of bodies, and
// which specifications there are. The CPU's and the GPU's kernels both take this header.
#ifndef GF_KERNELS_LAYOUT_H
#define GF_KERNELS_LAYOUT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../elements.h"
#include "../gf_api.h"

namespace gradflow {

struct Header {
  uint16_t magic;
  uint8_t version;
  uint8_t codec;
  uint8_t dtype;  // of the source; informative
  uint8_t flags;
  uint8_t block_log2;
  uint8_t bits;
  uint64_t count;  // elements
  uint64_t bytes;  // of the body
  uint32_t reserved;
  uint32_t crc;  // CRC32C of the header with zero here, followed by the body
};

static_assert(sizeof(Header) == 32, "the header has no padding");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian; this code copies them as they are"
#endif

constexpr uint16_t kMagic = 0x4647;  // "GF"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kFlagStochastic = 1;
constexpr uint8_t kFlagNonfinite = 2;
constexpr uint8_t kFlagEntropy = 4;  // the body is entropy coded

enum CodecId : uint16_t {
  kNone = 1,
  kFp16 = 2,
  kBf16 = 3,
  kInt8 = 4,
  kInt4 = 5,
  kInt2 = 6,
  kLog4 = 7,
  kDeadzone = 8,
  kSign1 = 9,
  kTopk = 10
};

// How a codec lays out its body: per-block entries first, then the codes.
struct Layout {
  int code_bits;
  int scale_bytes;  // per block; 0: no blocks
};

// False for an id that is not in C++, and for codecs whose body is of another kind: its length depends on the
// content.
inline bool layout_of(uint16_t id, Layout *layout) {
  static const Layout layouts[] = {{32, 0}, {16, 1}, {16, 0}, {8, 4}, {4, 4}, {2, 4}, {4, 1}};
  if (id < kNone || id > kLog4) return false;
  *layout = layouts[id - kNone];
  return true;
}

inline uint8_t log2_of(uint32_t power_of_two) { return (uint8_t)__builtin_ctz(power_of_two); }

inline uint8_t block_log2(const gf_codec_spec &spec, const Layout &layout) {
  return layout.scale_bytes ? log2_of(spec.block) : 0;
}

inline size_t blocks(const gf_codec_spec &spec, const Layout &layout, size_t n) {
  return layout.scale_bytes ? (n + spec.block - 1) / spec.block : 0;
}

inline size_t codes_size(const Layout &layout, size_t n) {
  return n / 8 * (size_t)layout.code_bits + (n % 8 * (size_t)layout.code_bits + 7) / 8;
}

// ---- Entropy stages ------------------------------------------------------------------------------------

constexpr uint64_t kEntropyBit = 1 << 24;  // of gf_codec_spec.params[1]

// Codecs whose bodies may be entropy coded.
GF_HD constexpr bool has_entropy_stage(int id) { return id >= kInt8 && id <= kDeadzone; }
inline bool entropy_of(const gf_codec_spec &spec) { return spec.params[1] & kEntropyBit; }

// Whether an entropy coded body of so many bytes may have n elements; it bounds a decoder's work and memory.
inline bool enough_bytes(size_t n, size_t body) { return n <= 512 * (sizeof(Header) + body); }

// ---- deadzone -----------------------------------------------------------------------------------------

constexpr uint8_t kDzBlockLog2 = 5;
constexpr size_t kDzGroupElements = 32 * GF_DZ_BLOCK;
constexpr size_t kDzSegmentBytes = 8;
constexpr size_t kDzGroupBytes = 6;
// Bytes that a block may take at most; it may also need a segment and a group of its own.
constexpr size_t kDzMostBlockBytes = (182 + 32 * (GF_DZ_SUM_BITS - 1) + 7) / 8;

GF_HD constexpr size_t dz_blocks(size_t n) { return (n + GF_DZ_BLOCK - 1) / GF_DZ_BLOCK; }
GF_HD constexpr size_t dz_groups(size_t n) { return (n + kDzGroupElements - 1) / kDzGroupElements; }

inline size_t deadzone_max_body(size_t n) {
  return 4 + dz_blocks(n) * (kDzMostBlockBytes + kDzSegmentBytes + kDzGroupBytes);
}

inline float dz_offset_of(const gf_codec_spec &spec) { return gf_float((uint32_t)(spec.params[1] >> 32)); }

// What a step is in units of the root mean square, where nobody gives steps.
inline double dz_multiple_of(const gf_codec_spec &spec) {
  double multiple = 1.0;
  if ((spec.params[1] & 0xff) == GF_CONTROL_STEP) memcpy(&multiple, &spec.params[0], sizeof multiple);
  return multiple;
}

// Whether segments cover n elements as they must.
inline bool dz_segments_cover(const gf_segment *segments, size_t count, size_t n) {
  uint64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const gf_segment &s = segments[i];
    if (s.end <= begin || (i + 1 < count && s.end % GF_DZ_BLOCK)) return false;
    if (gf_bits(s.step) >= GF_INF_BITS) return false;  // negative, infinite or NaN
    begin = s.end;
  }
  return begin == n;
}

inline const char *deadzone_fault(const gf_codec_spec &spec) {
  if (spec.bits) return "bits do not belong to this codec";
  if (spec.rounding != GF_NEAREST) return "this codec rounds to nearest only";
  if (spec.block != GF_DZ_BLOCK) return "this codec has blocks of 32";
  if ((spec.params[1] & 0xff) > GF_CONTROL_RATIO) return "unknown control";
  if ((spec.params[1] >> 8 & 0xff) > GF_SECOND_REQUANTIZE) return "unknown second encoding";
  if (spec.params[1] >> 24 & 0xfe) return "unknown entropy stage";
  const float offset = dz_offset_of(spec);
  if (!(offset >= 0.0f && offset <= 0.5f)) return "offset must be from 0 to 0.5";
  double value;
  memcpy(&value, &spec.params[0], sizeof value);
  if (!(value > 0.0 && value < HUGE_VAL)) return "what is asked for must be positive";
  return nullptr;
}

// ---- sign1 --------------------------------------------------------------------------------------------

inline size_t sign1_table_bytes(const gf_codec_spec &spec, size_t n) {
  return (n + spec.block - 1) / spec.block * 4;
}

// With a mask in every block.
inline size_t sign1_max_body(const gf_codec_spec &spec, size_t n) {
  return sign1_table_bytes(spec, n) + 2 * ((n + 7) / 8);
}

inline const char *block_fault(const gf_codec_spec &spec) {
  if (spec.block < 32 || spec.block > 32768 || (spec.block & (spec.block - 1)))
    return "block must be a power of two from 32 to 32768";
  return nullptr;
}

inline const char *sign1_fault(const gf_codec_spec &spec) {
  if (spec.bits) return "bits do not belong to this codec";
  if (spec.rounding != GF_NEAREST) return "this codec rounds to nearest only";
  return block_fault(spec);
}

// ---- topk, and the code of ascending indices -----------------------------------------------------------

inline double topk_ratio_of(const gf_codec_spec &spec) {
  double ratio;
  memcpy(&ratio, &spec.params[0], sizeof ratio);
  return ratio;
}

// The indices of any number of n elements take at most 1.1 n bits (hvd_gradflow/device/wire_topk.py says
// why).
inline size_t topk_max_body(size_t n) { return GF_TOPK_FRONT_BYTES + 4 * n + 1 + (n + n / 8 + 7) / 8; }

inline const char *topk_fault(const gf_codec_spec &spec) {
  if (spec.bits) return "bits do not belong to this codec";
  if (spec.rounding != GF_NEAREST) return "this codec rounds to nearest only";
  if (spec.block != 1) return "this codec has no blocks: block must be 1";
  const double ratio = topk_ratio_of(spec);
  if (spec.params[1] || !(ratio > 0.0 && ratio <= 1.0)) return "ratio must be above 0 and at most 1";
  return nullptr;
}

// ---- All codecs ---------------------------------------------------------------------------------------

// Why a specification cannot be used, or null.
inline const char *spec_fault(const gf_codec_spec &spec) {
  if (spec.id == kDeadzone) return deadzone_fault(spec);
  if (spec.id == kSign1) return sign1_fault(spec);
  if (spec.id == kTopk) return topk_fault(spec);
  Layout layout = {};
  if (!layout_of(spec.id, &layout)) return "unknown codec id";
  const bool uniform = spec.id >= kInt8 && spec.id <= kInt2;
  if (spec.bits != (uniform ? layout.code_bits : 0)) return "bits do not belong to this codec";
  if (spec.rounding > GF_STOCHASTIC) return "unknown rounding";
  if (spec.rounding == GF_STOCHASTIC && !uniform && spec.id != kLog4)
    return "this codec rounds to nearest only";
  if (spec.params[0] || (spec.params[1] & ~kEntropyBit) || (entropy_of(spec) && !has_entropy_stage(spec.id)))
    return "unknown entropy stage";
  if (!layout.scale_bytes) return spec.block == 1 ? nullptr : "this codec has no blocks: block must be 1";
  return block_fault(spec);
}

inline size_t max_body_bytes(const gf_codec_spec &spec, size_t n) {
  if (spec.id == kDeadzone) return deadzone_max_body(n);
  if (spec.id == kSign1) return sign1_max_body(spec, n);
  if (spec.id == kTopk) return topk_max_body(n);
  Layout layout = {};
  if (!layout_of(spec.id, &layout)) return 0;
  return blocks(spec, layout, n) * (size_t)layout.scale_bytes + codes_size(layout, n);
}

// The fields of a header that do not depend on the body, of a payload of `n` elements.
inline Header new_header(const gf_codec_spec &spec, int dtype, size_t n) {
  Layout layout = {};
  layout_of(spec.id, &layout);
  Header h = {};
  h.magic = kMagic;
  h.version = kVersion;
  h.codec = (uint8_t)spec.id;
  h.dtype = (uint8_t)dtype;
  h.flags = spec.rounding == GF_STOCHASTIC ? kFlagStochastic : 0;
  h.block_log2 = spec.id == kDeadzone ? kDzBlockLog2 : block_log2(spec, layout);
  h.bits = (uint8_t)layout.code_bits;
  if (spec.id == kSign1) {
    h.block_log2 = log2_of(spec.block);
    h.bits = 1;
  }
  if (spec.id == kTopk) h.bits = 32;
  h.count = n;
  return h;
}

// The first checks of a decoder: of everything that has to be as in `expected`.
GF_FN int header_status(const Header &h, const Header &expected) {
  if (h.magic != kMagic) return GF_WIRE_MAGIC;
  if (h.version != kVersion) return GF_WIRE_VERSION;
  if (h.codec != expected.codec || h.bits != expected.bits || h.block_log2 != expected.block_log2)
    return GF_WIRE_CODEC;
  return h.count != expected.count ? GF_WIRE_COUNT : GF_WIRE_OK;
}

// Whether a body may have the header's number of bytes: `most`, but for those that content decides, which
// have `least` or more.
GF_FN bool length_fits(const Header &h, uint64_t least, uint64_t most) {
  if (h.codec == kDeadzone || h.codec == kSign1) return h.bytes >= least && h.bytes <= most;
  const bool squeezed = has_entropy_stage(h.codec) && (h.flags & kFlagEntropy);
  return h.bytes == most || (squeezed && h.bytes >= least && h.bytes < most);
}

// The least bytes of a body whose length the content decides.
inline size_t least_body_bytes(const gf_codec_spec &spec, size_t n) {
  if (spec.id == kSign1) return sign1_table_bytes(spec, n);
  Layout layout = {};
  if (!layout_of(spec.id, &layout)) return 4;  // deadzone
  return blocks(spec, layout, n) * (size_t)layout.scale_bytes + 4;
}

// Flags that payloads of a codec may have.
GF_FN int known_flags(int id) {
  return kFlagNonfinite | (id == kDeadzone ? 0 : kFlagStochastic) |
         (has_entropy_stage(id) ? kFlagEntropy : 0);
}

// Step 5 of the checks in docs/wire-format.md, as far as the header goes.
GF_FN bool header_content_valid(const Header &h, int known_flags) {
  return !h.reserved && h.dtype >= GF_F32 && h.dtype <= GF_BF16 && !(h.flags & ~known_flags);
}

}  // namespace gradflow

#endif
