#include "cauchy.hpp"

#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gf {

namespace {

struct Field {
  uint8_t exp[512];
  uint8_t log[256] = {};
  Field() {
    unsigned x = 1;
    for (unsigned i = 0; i < 255; ++i) {
      exp[i] = exp[i + 255] = static_cast<uint8_t>(x);
      log[x] = static_cast<uint8_t>(i);
      x = x << 1 ^ (x & 0x80 ? 0x11Du : 0u);
    }
    exp[510] = exp[511] = 0;
  }
  uint8_t product(uint8_t a, uint8_t b) const { return a && b ? exp[log[a] + log[b]] : uint8_t{0}; }
  uint8_t inverse(uint8_t a) const { return exp[255 - log[a]]; }
};

const Field &field() {
  static const Field f;
  return f;
}

// Products of a factor with all that has four bits, and with all that has the upper four.
struct Nibbles {
  alignas(16) uint8_t low[16], high[16];
  explicit Nibbles(uint8_t factor) {
    for (unsigned i = 0; i < 16; ++i) {
      low[i] = field().product(factor, static_cast<uint8_t>(i));
      high[i] = field().product(factor, static_cast<uint8_t>(i << 4));
    }
  }
};

void add_plain(const Nibbles &t, const uint8_t *src, uint8_t *dst, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) dst[i] ^= static_cast<uint8_t>(t.low[src[i] & 15] ^ t.high[src[i] >> 4]);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_avx2(const Nibbles &t, const uint8_t *src, uint8_t *dst,
                                              size_t bytes) {
  const __m256i low = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i *>(t.low));
  const __m256i high = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i *>(t.high));
  const __m256i mask = _mm256_set1_epi8(15);
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src + i));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(dst + i));
    const __m256i a = _mm256_shuffle_epi8(low, _mm256_and_si256(x, mask));
    const __m256i b = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(x, 4), mask));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(dst + i), _mm256_xor_si256(y, _mm256_xor_si256(a, b)));
  }
  add_plain(t, src + i, dst + i, bytes - i);
}
#endif

// Row i has 1 / (x_i + y_j) with x_i = i and y_j = m + j, which all differ.
uint8_t element(uint32_t m, uint32_t i, uint32_t j) {
  return field().inverse(static_cast<uint8_t>(i ^ (m + j)));
}

// Gauss and Jordan; every square part of a Cauchy matrix has an inverse.
bool invert(std::vector<std::vector<uint8_t>> *matrix) {
  auto &a = *matrix;
  const size_t n = a.size();
  for (size_t i = 0; i < n; ++i) {
    a[i].resize(2 * n, 0);
    a[i][n + i] = 1;
  }
  for (size_t c = 0; c < n; ++c) {
    size_t pivot = c;
    while (pivot < n && !a[pivot][c]) ++pivot;
    if (pivot == n) return false;
    std::swap(a[c], a[pivot]);
    const uint8_t scale = field().inverse(a[c][c]);
    for (uint8_t &v : a[c]) v = field().product(v, scale);
    for (size_t r = 0; r < n; ++r) {
      const uint8_t factor = a[r][c];
      if (r != c && factor) multiply_add(factor, a[c].data(), a[r].data(), 2 * n);
    }
  }
  return true;
}

}  // namespace

uint8_t field_product(uint8_t a, uint8_t b) { return field().product(a, b); }

void multiply_add(uint8_t factor, const uint8_t *src, uint8_t *dst, size_t bytes) {
  if (!factor) return;
  const Nibbles table(factor);
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return add_avx2(table, src, dst, bytes);
#endif
  add_plain(table, src, dst, bytes);
}

void cauchy_encode(uint32_t k, uint32_t m, const uint8_t *const *source, uint8_t *const *parity,
                   size_t bytes) {
  for (uint32_t i = 0; i < m; ++i) {
    std::memset(parity[i], 0, bytes);
    for (uint32_t j = 0; j < k; ++j) multiply_add(element(m, i, j), source[j], parity[i], bytes);
  }
}

bool cauchy_decode(uint32_t k, uint32_t m, const std::vector<const uint8_t *> &source,
                   const std::vector<uint32_t> &which, const uint8_t *const *parity, size_t bytes,
                   uint8_t *const *missing) {
  std::vector<uint32_t> lost;
  for (uint32_t j = 0; j < k; ++j) {
    if (!source[j]) lost.push_back(j);
  }
  const size_t n = lost.size();
  if (which.size() < n) return false;
  std::vector<std::vector<uint8_t>> matrix(n), syndromes(n);
  for (size_t i = 0; i < n; ++i) {
    for (uint32_t j : lost) matrix[i].push_back(element(m, which[i], j));
    syndromes[i].assign(parity[i], parity[i] + bytes);
    for (uint32_t j = 0; j < k; ++j) {
      if (source[j]) multiply_add(element(m, which[i], j), source[j], syndromes[i].data(), bytes);
    }
  }
  if (!invert(&matrix)) return false;
  for (size_t j = 0; j < n; ++j) {
    std::memset(missing[j], 0, bytes);
    for (size_t i = 0; i < n; ++i) multiply_add(matrix[j][n + i], syndromes[i].data(), missing[j], bytes);
  }
  return true;
}

}  // namespace gf
