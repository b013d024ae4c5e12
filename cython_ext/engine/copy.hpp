// A copy to memory that nobody reads soon: past the caches, which keep what the steps of a chunk need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace gf {

inline void copy_past_caches(void *to, const void *from, size_t bytes) {
#ifdef __SSE2__
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0) {
    auto *out = static_cast<__m128i *>(to);
    const auto *in = static_cast<const __m128i *>(from);
    const size_t whole = bytes / sizeof(__m128i);
    for (size_t i = 0; i < whole; ++i) _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
    _mm_sfence();
    std::memcpy(out + whole, in + whole, bytes % sizeof(__m128i));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace gf
