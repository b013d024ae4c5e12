// A unit: what is reduced in one piece. Python fills it, the engine thread works on it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "../../cuda/gpu_api.h"
#include "protocol.hpp"

namespace gf {

enum class UnitState : int { kSubmitted = 0, kRunning = 1, kDone = 2, kFailed = 3 };

struct Unit {
  std::string name;
  std::string manifest;  // a line for each tensor: name, shape, dtype
  uint64_t digest = 0;   // of the manifest
  UnitSpec spec;
  const void *input = nullptr;
  void *output = nullptr;          // may be the input
  float *residual = nullptr;       // as many elements, or null
  float *backup = nullptr;         // of the residual, for units that are kUnchecked and have one
  const float *rescale = nullptr;  // what the residual is multiplied with when this is announced, or null
  std::vector<uint64_t> ends;      // of the tensors in the buffer, in elements; empty: one tensor
  bool finite = true;
  bool join = false;  // not a reduction: "this rank has no more data"

  // Where input, output, residual and backup are a device's: its kernels, which device of theirs, the event
  // behind which the input is complete, and where it then says (on the host) whether that is finite; null
  // where nobody asks.
  const gf_gpu_api *gpu = nullptr;
  int device = 0;
  void *gathered = nullptr;
  const int32_t *gathered_finite = nullptr;
  bool is_gathered = false;    // the engine thread has seen it
  double gathering_since = 0;  // seconds of now()

  std::atomic<UnitState> state{UnitState::kSubmitted};
  // Written by the engine thread before the state becomes final.
  double started = 0, ended = 0;  // seconds of now(): let go, and final
  Failure failure = Failure::kNone;
  std::string error;
  int64_t value = 0;
  Statistics statistics;
};

using UnitPtr = std::shared_ptr<Unit>;

// How a unit is cut; a pure function of what all ranks know.
struct Geometry {
  uint64_t chunk = 0;  // elements
  uint64_t chunks = 0;
  uint64_t begin = 0, end = 0;  // elements of the unit: all, or those of a part
  uint64_t before = 0;          // chunks of the part before

  static constexpr uint64_t kAlign = 64;       // elements, where the codec has no blocks
  static constexpr uint64_t kSmallest = 4096;  // elements; below it a message costs more than its bytes
  static constexpr uint64_t kPiece = 512;      // the same where each must travel in one piece

  static uint64_t align_of(const UnitSpec &spec) {
    return std::max<uint64_t>(spec.codec.block, 1) > 1 ? spec.codec.block : kAlign;
  }
  // Elements of the shortest chunk, if the unit has as many.
  static uint64_t smallest(const UnitSpec &spec, uint64_t least = kSmallest) {
    const uint64_t align = align_of(spec);
    return (least + align - 1) / align * align;
  }

  // `bytes(n)` is the most that a payload of n elements has; it must be at most `room`, and is at most
  // `eager` where that leaves `least` elements.
  template <class Bytes>
  static Geometry of(const UnitSpec &spec, size_t chunk_bytes, uint64_t owners, Bytes bytes, size_t eager,
                     size_t room, uint64_t least = kSmallest) {
    Geometry g;
    const uint64_t align = align_of(spec);
    auto up = [&](uint64_t n) { return (n + align - 1) / align * align; };
    const uint64_t most = std::max<uint64_t>(chunk_bytes / spec.element_bytes() / align, 1) * align;
    const uint64_t share = up((spec.elements + owners - 1) / owners);
    g.chunk = std::min(most, std::max(share, up(least)));
    if (bytes(g.chunk) > eager && bytes(std::min(g.chunk, up(least))) <= eager) {
      uint64_t low = up(least) / align, high = g.chunk / align;  // in blocks: low fits, high does not
      while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;
        (bytes(middle * align) <= eager ? low : high) = middle;
      }
      g.chunk = low * align;
    }
    while (g.chunk > align && bytes(g.chunk) > room) g.chunk = up(g.chunk / 2);
    g.end = spec.part == Part::kFirst ? spec.split : spec.elements;
    if (spec.part == Part::kSecond) {
      g.begin = spec.split;
      g.before = (spec.split + g.chunk - 1) / g.chunk;
    }
    g.chunks = (g.end - g.begin + g.chunk - 1) / g.chunk;
    return g;
  }
};

}  // namespace gf
