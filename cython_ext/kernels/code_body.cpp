#include "code_body.h"

#include <string.h>

#include <new>

#include "levels.h"

namespace gradflow {
namespace {

// What the streams take at most for the elements between two looks: 1024, each with three decisions of less
// than 11 bits and 8 other bits.
constexpr size_t kPieceRoom = 8192;

}  // namespace

size_t squeeze_body(const gf_codec_spec &spec, const Layout &layout, uint8_t *body, size_t n) {
  const size_t front = blocks(spec, layout, n) * (size_t)layout.scale_bytes;
  const size_t code_bytes = codes_size(layout, n), bytes = front + code_bytes;
  if (code_bytes < 6) return bytes;
  CodeSqueeze run = {};
  run.bits = layout.code_bits;
  run.scale_bytes = layout.scale_bytes;
  run.block = spec.block;
  run.n = n;
  run.scales = body;
  run.codes = body + front;
  run.most = code_bytes - 5;  // one byte less, with the 4 of a length
  const size_t room = run.most + kPieceRoom;
  // Without memory it stays as it is, which every decoder takes.
  const std::unique_ptr<uint8_t[]> scratch(new (std::nothrow) uint8_t[2 * room]);
  if (!scratch) return bytes;
  run.coded = scratch.get();
  run.raw = scratch.get() + room;
  if (!level().squeeze_codes(&run) || run.coded_bytes + run.raw_bytes > run.most) return bytes;
  if (run.coded_bytes > UINT32_MAX) return bytes;  // of an array of more than 2^32 elements
  const size_t made = front + 4 + run.coded_bytes + run.raw_bytes;
  if (!enough_bytes(n, made)) return bytes;
  const uint32_t coded_bytes = (uint32_t)run.coded_bytes;
  memcpy(body + front, &coded_bytes, 4);
  memcpy(body + front + 4, run.coded, run.coded_bytes);
  memcpy(body + front + 4 + run.coded_bytes, run.raw, run.raw_bytes);
  return made;
}

std::unique_ptr<uint8_t[]> unsqueeze_body(const gf_codec_spec &spec, const Layout &layout,
                                          const uint8_t *body, size_t bytes, size_t n) {
  const size_t front = blocks(spec, layout, n) * (size_t)layout.scale_bytes;
  if (bytes < front + 4 || bytes >= front + codes_size(layout, n) || !enough_bytes(n, bytes)) return nullptr;
  uint32_t coded_bytes;
  memcpy(&coded_bytes, body + front, 4);
  if (coded_bytes > bytes - front - 4) return nullptr;
  // At most a quarter of the floats that the caller has room for. Without memory the payload is refused.
  std::unique_ptr<uint8_t[]> codes(new (std::nothrow) uint8_t[codes_size(layout, n)]());
  if (!codes) return nullptr;
  CodeUnsqueeze run = {};
  run.bits = layout.code_bits;
  run.scale_bytes = layout.scale_bytes;
  run.block = spec.block;
  run.n = n;
  run.scales = body;
  run.coded = body + front + 4;
  run.coded_bytes = coded_bytes;
  run.raw = run.coded + coded_bytes;
  run.raw_bytes = bytes - front - 4 - coded_bytes;
  run.codes = codes.get();
  if (!level().unsqueeze_codes(run)) return nullptr;
  return codes;
}

}  // namespace gradflow
