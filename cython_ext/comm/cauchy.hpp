// Reed-Solomon parity for short blocks, over GF(2^8) with x^8 + x^4 + x^3 + x^2 + 1 (the field of RFC 5510,
// section 8.1), by a Cauchy matrix (Bloemer and others, "An XOR-Based Erasure-Resilient Coding Scheme", ICSI
// TR-95-048, 1995): any k of the k + m symbols give the others. Where blocks are short, codes of XORs need a
// symbol or two beyond that; where they are long this one would take too long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gf {

constexpr uint32_t kCauchySymbols = 256;  // of a block, parity counted

// dst += factor * src, in the field.
void multiply_add(uint8_t factor, const uint8_t *src, uint8_t *dst, size_t bytes);
uint8_t field_product(uint8_t a, uint8_t b);

// Writes m symbols made of k. k + m is at most kCauchySymbols.
void cauchy_encode(uint32_t k, uint32_t m, const uint8_t *const *source, uint8_t *const *parity,
                   size_t bytes);
// Writes the sources that are null, in order, to `missing`, from as many parity symbols at least: `which`
// says of each its number. False where there are too few, or one twice.
bool cauchy_decode(uint32_t k, uint32_t m, const std::vector<const uint8_t *> &source,
                   const std::vector<uint32_t> &which, const uint8_t *const *parity, size_t bytes,
                   uint8_t *const *missing);

}  // namespace gf
