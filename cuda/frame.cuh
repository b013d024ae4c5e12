// What all encoders and decoders share: the state of one call, which lies in front of its scratch, and the
// kernels that check, checksum and seal payloads.
#ifndef GF_GPU_FRAME_CUH
#define GF_GPU_FRAME_CUH

#include "../cython_ext/kernels/layout.h"
#include "gpu_api.h"
#include "gpu_runtime.h"

namespace gradflow_gpu {

using gradflow::Header;
using gradflow::Layout;

// What was found in a payload, or while one was made.
enum Found : uint32_t {
  kSawNonfinite = 1,   // a block that is not finite
  kBadContent = 2,     // scales, codes or blocks that no encoder writes
  kBadTables = 4,      // deadzone: tables that do not fit the body
  kOtherSegments = 8,  // deadzone: not the segments that were expected
  kEntropyCoded = 16   // deadzone: the other form of the body
};

struct Work {
  uint64_t body;    // bytes of the body
  uint64_t groups;  // deadzone: how many, and the bytes of their data
  uint64_t data;
  uint32_t segments;  // deadzone
  uint32_t crc;       // CRC register of header and body, so far
  uint32_t found;     // Found
  uint32_t ended;     // blocks of the last kernel that have ended
  uint32_t ticket;    // number of the tile that comes next
  uint32_t reserved;
};

constexpr size_t kWorkBytes = 256;

// Where a fixed layout's parts lie in its body; `code_bits` above 8 are not looked at.
struct Regions {
  uint64_t scale_bytes, code_bytes;
  int codec, code_bits, scale_width;
  int last_bits;  // bits of the last byte that belong to codes; 0: all
};

// Puts the header in front of a body whose bytes are complete and counted in work->body.
void seal(const Header &header, uint8_t *out, uint64_t *size, Work *work, size_t most_body,
          gpuStream_t stream);
// Begins a check: *status and *work are set, and the header looked at. A body that is not `exact` may have
// between `least` and `most` bytes (of deadzone and sign1).
void open_payload(const Header &expected, const uint8_t *in, size_t bytes, uint64_t least, uint64_t most,
                  int32_t *status, Work *work, gpuStream_t stream);
// Ends a check: reads the body, and gives the verdict on it and on all that was found.
void judge_payload(const Regions &regions, const uint8_t *in, size_t most_body, int32_t *status, Work *work,
                   gpuStream_t stream);

}  // namespace gradflow_gpu

#endif
