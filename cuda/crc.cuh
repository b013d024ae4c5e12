// CRC32C on a GPU. A CRC is linear: the register is the exclusive-or of what each word leaves in it,
// multiplied by x^8 for each byte that follows. So threads take every 256th piece of 16 bytes, and step from
// one to the next by one multiplication with a constant, as four look-ups; at the end each result is moved to
// its place.
#ifndef GF_GPU_CRC_CUH
#define GF_GPU_CRC_CUH

#include "../cython_ext/kernels/crc32c.h"
#include "memory.cuh"

namespace gradflow_gpu {

using gradflow::crc_multiply;
using gradflow::crc_x_power;

constexpr unsigned kCrcThreads = 256;
constexpr unsigned kCrcStep = 16 * kCrcThreads;  // bytes that a block takes at once
constexpr uint32_t kCrcOne = 0x80000000u;        // x^0

struct CrcTables {
  uint32_t step[4][256];        // v * x^(8 step), for v in each byte of a register
  uint32_t place[kCrcThreads];  // x^(8 * bytes behind a thread's 16 within a step)
  uint32_t power[64];           // x^(8 * 2^k)
  constexpr CrcTables() : step(), place(), power() {
    const uint32_t over = crc_x_power(8 * (uint64_t)kCrcStep), piece = crc_x_power(8 * 16);
    for (unsigned byte = 0; byte < 4; ++byte)
      for (unsigned bit = 0; bit < 8; ++bit) {
        const uint32_t one = crc_multiply(over, 1u << (8 * byte + bit));
        for (unsigned v = 0; v < 256; ++v)
          if (v >> bit & 1u) step[byte][v] ^= one;
      }
    place[kCrcThreads - 1] = kCrcOne;
    for (unsigned t = kCrcThreads - 1; t; --t) place[t - 1] = crc_multiply(place[t], piece);
    power[0] = crc_x_power(8);
    for (unsigned k = 1; k < 64; ++k) power[k] = crc_multiply(power[k - 1], power[k - 1]);
  }
};

// x^(8 bytes), worked out by a whole warp; all lanes get it.
GPU_FN uint32_t crc_power_of_warp(const CrcTables &tables, uint64_t bytes) {
  const unsigned l = lane();
  uint32_t p = bytes >> l & 1u ? tables.power[l] : kCrcOne;
  if (bytes >> (32 + l) & 1u) p = crc_multiply(p, tables.power[32 + l]);
  for (unsigned mask = 16; mask; mask /= 2) p = crc_multiply(p, shuffle_xor(p, mask));
  return p;
}

}  // namespace gradflow_gpu

#endif
