#include "deadzone_body.h"

#include <new>

#include "deadzone.h"
#include "frame.h"
#include "levels.h"

namespace gradflow {
namespace {

// What the streams of one group of blocks may take at most, amply: a block has 546 decisions of less than 11
// bits each, and 257 bytes of other bits.
constexpr size_t kGroupRoom = 32 * 1024;

}  // namespace

bool dz_segments_valid(const uint8_t *body, size_t bytes, size_t n, size_t *groups) {
  if (bytes < 4) return false;
  const uint64_t count = dz_load(body);
  if (count > dz_blocks(n) || (count == 0) != (n == 0) || 4 + count * kDzSegmentBytes > bytes) return false;
  uint64_t blocks = 0;
  *groups = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t own = dz_load(body + 4 + i * kDzSegmentBytes);
    if (own == 0 || dz_load(body + 8 + i * kDzSegmentBytes) >= GF_INF_BITS) return false;
    blocks += own;
    *groups += (size_t)((own + 31) / 32);
  }
  return blocks == dz_blocks(n);
}

size_t dz_squeeze(uint8_t *body, size_t bytes, size_t n) {
  size_t groups;
  const size_t front = dz_front(body);
  if (!dz_segments_valid(body, bytes, n, &groups) || bytes - front < 6) return bytes;
  DeadzoneSqueeze run = {};
  run.body = body;
  run.groups = body + front + 2 * groups;
  run.n = n;
  run.most = bytes - front - 5;  // one byte less, with the 4 of a length
  const size_t room = run.most + kGroupRoom;
  // Without memory it stays packed, which every decoder takes.
  const std::unique_ptr<uint8_t[]> scratch(new (std::nothrow) uint8_t[2 * room]);
  if (!scratch) return bytes;
  run.coded = scratch.get();
  run.raw = scratch.get() + room;
  if (!level().squeeze_deadzone(&run) || run.coded_bytes + run.raw_bytes > run.most) return bytes;
  const size_t made = front + 4 + run.coded_bytes + run.raw_bytes;
  if (!enough_bytes(n, made)) return bytes;
  dz_store(body + front, (uint32_t)run.coded_bytes);
  memcpy(body + front + 4, run.coded, run.coded_bytes);
  memcpy(body + front + 4 + run.coded_bytes, run.raw, run.raw_bytes);
  return made;
}

std::unique_ptr<uint8_t[]> dz_unsqueeze(const uint8_t *body, size_t bytes, size_t n, size_t *packed_bytes) {
  size_t groups;
  if (!dz_segments_valid(body, bytes, n, &groups)) return nullptr;
  const size_t front = dz_front(body);
  if (bytes - front < 4 || !enough_bytes(n, bytes)) return nullptr;
  DeadzoneUnsqueeze run = {};
  run.coded_bytes = dz_load(body + front);
  if (run.coded_bytes > bytes - front - 4) return nullptr;
  run.table = body + 4;
  run.segments = dz_load(body);
  run.n = n;
  run.coded = body + front + 4;
  run.raw = run.coded + run.coded_bytes;
  run.raw_bytes = bytes - front - 4 - run.coded_bytes;
  // About as much as the floats that the caller has room for; what is not used is never touched. Without
  // memory the payload is refused.
  std::unique_ptr<uint8_t[]> packed(new (std::nothrow) uint8_t[deadzone_max_body(n)]);
  if (!packed) return nullptr;
  memcpy(packed.get(), body, front);
  run.sizes = packed.get() + front;
  run.groups = run.sizes + 2 * groups;
  if (!level().unsqueeze_deadzone(&run)) return nullptr;
  *packed_bytes = (size_t)(run.end - packed.get());
  return packed;
}

}  // namespace gradflow
