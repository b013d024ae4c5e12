// The 32-byte header of every payload; docs/wire-format.md describes each field.
#ifndef GF_KERNELS_FRAME_H
#define GF_KERNELS_FRAME_H

#include <stddef.h>
#include <stdint.h>

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
constexpr uint8_t kFlagEntropy = 4;  // deadzone's body is entropy coded

enum CodecId : uint16_t {
  kNone = 1,
  kFp16 = 2,
  kBf16 = 3,
  kInt8 = 4,
  kInt4 = 5,
  kInt2 = 6,
  kLog4 = 7,
  kDeadzone = 8
};

// How a codec lays out its body: per-block entries first, then the codes.
struct Layout {
  int code_bits;
  int scale_bytes;  // per block; 0: no blocks
};

// False for an id that is not in C++, and for deadzone, whose body is of another kind.
bool layout_of(uint16_t id, Layout *layout);

// Why a specification cannot be used, or null.
const char *spec_fault(const gf_codec_spec &spec);

// Writes the header in front of a body that is complete; `crc_body` is its CRC32C.
size_t seal_payload(const gf_codec_spec &spec, int dtype, uint8_t flags, uint8_t block_log2, uint8_t bits,
                    size_t n, size_t body, uint32_t crc_body, uint8_t *out);
// Everything about a header that does not depend on the body.
int check_header(const gf_codec_spec &spec, uint8_t block_log2, uint8_t bits, const uint8_t *in, size_t bytes,
                 size_t n, Header *header);
// Steps 2 to 4 of the checks in docs/wire-format.md that come after `check_header`.
bool header_content_valid(const Header &header, int known_flags);

size_t max_body_bytes(const gf_codec_spec &spec, size_t n);
size_t encode_payload(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                      uint64_t key, uint64_t first, uint8_t *out);
int decode_payload(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n,
                   bool add);

const gf_codec_ops *find_codec(uint16_t id);
const gf_api *api();

}  // namespace gradflow

#endif
