#include "crc32c.h"

#include <string.h>

namespace gradflow {
namespace {

struct Tables {
  uint32_t t[8][256];
  constexpr Tables() : t() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1u ? (c >> 1) ^ kCrcPolynomial : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (int k = 1; k < 8; ++k) t[k][i] = t[0][t[k - 1][i] & 0xff] ^ (t[k - 1][i] >> 8);
  }
};

struct Powers {
  uint32_t p[64];  // x^(8 * 2^k)
  constexpr Powers() : p() {
    p[0] = crc_x_power(8);
    for (int k = 1; k < 64; ++k) p[k] = crc_multiply(p[k - 1], p[k - 1]);
  }
};

constexpr Tables kTables;
constexpr Powers kPowers;

}  // namespace

// Slicing by eight.
uint32_t crc32c_table(uint32_t crc, const uint8_t *data, size_t bytes) {
  const auto &t = kTables.t;
  uint32_t c = ~crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t w;
    memcpy(&w, data, 8);
    w ^= c;
    c = t[7][w & 0xff] ^ t[6][w >> 8 & 0xff] ^ t[5][w >> 16 & 0xff] ^ t[4][w >> 24 & 0xff] ^
        t[3][w >> 32 & 0xff] ^ t[2][w >> 40 & 0xff] ^ t[1][w >> 48 & 0xff] ^ t[0][w >> 56];
  }
  for (; bytes; --bytes, ++data) c = t[0][(c ^ *data) & 0xff] ^ (c >> 8);
  return ~c;
}

uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t bytes_of_b) {
  for (int k = 0; bytes_of_b; bytes_of_b >>= 1, ++k)
    if (bytes_of_b & 1) a = crc_multiply(kPowers.p[k], a);
  return a ^ b;
}

}  // namespace gradflow
