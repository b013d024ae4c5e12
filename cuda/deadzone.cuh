// deadzone on a GPU: a warp encodes or decodes a group, one block of 32 elements after another, an element a
// lane. Bits go in and out of memory as docs/wire-format.md lays them out; numbers that concern a whole block
// are the same in all lanes.
#ifndef GF_GPU_DEADZONE_CUH
#define GF_GPU_DEADZONE_CUH

#include "codecs.cuh"
#include "memory.cuh"

namespace gradflow_gpu {

constexpr unsigned kDzWarps = 8;  // of a block of threads: as many groups at a time, a tile
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

template <typename T>
GPU_FN T sum_of_warp(T v) {
  for (unsigned mask = 16; mask; mask /= 2) v += shuffle_xor(v, mask);
  return v;
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

// ---- A scan over all tiles, in one pass (D. Merrill, M. Garland: Single-pass parallel prefix scan with
// decoupled look-back, 2016). A tile's word holds its sum, or that of all tiles up to it, and in the lowest
// bits which of them. Tiles are numbered in the order in which blocks begin them, so whoever is waited for is
// under way.

constexpr uint64_t kTileSum = 1, kTilePrefix = 2;

// The sum over all tiles before this one; for one warp.
GPU_FN uint64_t look_back(uint64_t *tiles, uint64_t tile, uint64_t own) {
  if (lane() == 0) store_shared_state(tiles + tile, own << 2 | (tile ? kTileSum : kTilePrefix));
  if (tile == 0) return 0;
  uint64_t before = 0;
  for (uint64_t end = tile;; end -= kWarp) {  // lane l looks at tile end - 1 - l
    uint64_t state;
    do {
      state = lane() < end ? load_shared_state(tiles + (end - 1 - lane())) : kTilePrefix;
    } while (ballot((state & 3) == 0));
    const uint32_t whole = ballot((state & 3) == kTilePrefix);
    const unsigned last = whole ? lowest_bit(whole) : kWarp - 1;
    before += sum_of_warp(lane() <= last ? state >> 2 : (uint64_t)0);
    if (whole) break;
  }
  if (lane() == 0) store_shared_state(tiles + tile, (before + own) << 2 | kTilePrefix);
  return before;
}

// The tile that this block works on next, and, from each warp's own bytes, where these begin.
GPU_FN uint64_t next_tile(Work *work) {
  __shared__ uint32_t ticket;
  __syncthreads();
  if (threadIdx.x == 0) ticket = atomicAdd(&work->ticket, 1u);
  __syncthreads();
  return ticket;
}

// `total` becomes the bytes of all tiles up to this one.
GPU_FN uint64_t place_in_scan(uint64_t *tiles, uint64_t tile, uint32_t own, uint64_t *total) {
  __shared__ uint32_t sizes[kDzWarps];
  __shared__ uint64_t before;
  const unsigned warp = threadIdx.x / kWarp;
  if (lane() == 0) sizes[warp] = own;
  __syncthreads();
  uint64_t all = 0, mine = 0;
  for (unsigned w = 0; w < kDzWarps; ++w) {
    if (w == warp) mine = all;
    all += sizes[w];
  }
  if (warp == 0) {
    const uint64_t found = look_back(tiles, tile, all);
    if (lane() == 0) before = found;
  }
  __syncthreads();
  *total = before + all;
  mine += before;
  return mine;
}

}  // namespace gradflow_gpu

#endif
