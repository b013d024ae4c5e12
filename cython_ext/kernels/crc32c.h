// CRC32C (Castagnoli; RFC 3720, appendix B.4): polynomial 0x1edc6f41, here in reflected bit order, as the
// x86 instruction has it. Chains like zlib's: crc(ab) = crc32c(crc32c(0, a), b).
#ifndef GF_KERNELS_CRC32C_H
#define GF_KERNELS_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#include "../elements.h"

namespace gradflow {

constexpr uint32_t kCrcPolynomial = 0x82f63b78u;  // reflected

// a * b modulo the polynomial; bit 31 is the coefficient of x^0.
GF_HD constexpr uint32_t crc_multiply(uint32_t a, uint32_t b) {
  uint32_t p = 0;
  for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
    if (a & bit) p ^= b;
    b = b & 1u ? (b >> 1) ^ kCrcPolynomial : b >> 1;
  }
  return p;
}

// x^n modulo the polynomial.
GF_HD constexpr uint32_t crc_x_power(uint64_t n) {
  uint32_t p = 0x80000000u, square = 0x40000000u;
  for (; n; n >>= 1) {
    if (n & 1) p = crc_multiply(square, p);
    square = crc_multiply(square, square);
  }
  return p;
}

uint32_t crc32c_table(uint32_t crc, const uint8_t *data, size_t bytes);

// CRC of a followed by b, from their own CRCs and b's length.
uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t bytes_of_b);

}  // namespace gradflow

#endif
