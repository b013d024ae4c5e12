// deadzone on a GPU: a warp encodes or decodes a group, one block of 32 elements after another, an element a
// lane. Bits go in and out of memory as docs/wire-format.md lays them out; numbers that concern a whole block
// are the same in all lanes.
#ifndef GF_GPU_DEADZONE_CUH
#define GF_GPU_DEADZONE_CUH

#include "codecs.cuh"
#include "memory.cuh"
#include "scan.cuh"

namespace gradflow_gpu {

constexpr unsigned kDzWarps = kTileWarps;  // of a block of threads: as many groups at a time
constexpr unsigned kDzThreads = kDzWarps * kWarp;
constexpr unsigned kDzMostPlaces = 5;  // codes of a block up to which their places are cheaper than a mask
constexpr uint32_t kDzShifted = 6, kDzNonfinite = 7, kDzLarge = 8;
constexpr unsigned kDzGroupWords =
    (4 + 32 * gradflow::kDzMostBlockBytes + 3) / 4 + 1;  // room for a group's data

GPU_FN uint32_t max_of_warp(uint32_t m) {
  for (unsigned mask = 16; mask; mask /= 2) {
    const uint32_t other = shuffle_xor(m, mask);
    m = other > m ? other : m;
  }
  return m;
}

GPU_FN uint32_t lanes_below() { return (1u << lane()) - 1u; }
GPU_FN uint32_t first_bits(unsigned count) { return count >= 32 ? ~0u : (1u << count) - 1u; }

// Place of the set bit of rank r, r below the number of set bits.
GPU_FN unsigned place_of(uint32_t mask, unsigned r) {
  unsigned place = 0;
  for (unsigned half = 16; half; half /= 2) {
    const unsigned low = count_bits(mask >> place & first_bits(half));
    if (r >= low) {
      r -= low;
      place += half;
    }
  }
  return place;
}

// Low bits of each code that are sent as they are.
GPU_FN unsigned low_bits(uint32_t sum, unsigned count) {
  unsigned k = 0;
  while (k < 31 && sum >> (k + 1) >= count) ++k;
  return k;
}

struct DzGroup {
  size_t begin, end;  // elements
  float step;
};

// Group g of a table of `count` segments, in n elements.
GPU_FN DzGroup group_at(const DzSegment *segments, size_t count, size_t g, size_t n) {
  size_t low = 0, high = count;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (segments[middle].first_group <= g) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const DzSegment s = segments[low];
  DzGroup group;
  const size_t end = ((size_t)s.first_block + s.blocks) * GF_DZ_BLOCK;
  group.begin = (size_t)s.first_block * GF_DZ_BLOCK + (g - s.first_group) * gradflow::kDzGroupElements;
  group.end = group.begin + gradflow::kDzGroupElements < end ? group.begin + gradflow::kDzGroupElements : end;
  if (group.end > n) group.end = n;
  group.step = s.step;
  return group;
}

}  // namespace gradflow_gpu

#endif
