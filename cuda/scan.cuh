// Where each warp's bytes go, when what is before them is of any length.
#ifndef GF_GPU_SCAN_CUH
#define GF_GPU_SCAN_CUH

#include "frame.cuh"

namespace gradflow_gpu {

constexpr unsigned kTileWarps = 8;  // of a block of threads: what they write is a tile

template <typename T>
GPU_FN T sum_of_warp(T v) {
  for (unsigned mask = 16; mask; mask /= 2) v += shuffle_xor(v, mask);
  return v;
}

// A scan over all tiles, in one pass (D. Merrill, M. Garland: Single-pass parallel prefix scan with
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
  __shared__ uint32_t sizes[kTileWarps];
  __shared__ uint64_t before;
  const unsigned warp = threadIdx.x / kWarp;
  if (lane() == 0) sizes[warp] = own;
  __syncthreads();
  uint64_t all = 0, mine = 0;
  for (unsigned w = 0; w < kTileWarps; ++w) {
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
