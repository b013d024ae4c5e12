// CRC32C with the SSE4.2 instruction, three streams at a time to hide its latency; their CRCs are joined by
// a carry-less multiplication (V. Gopal et al.: Fast CRC computation for iSCSI polynomial using CRC32
// instruction, Intel 2011). No include guard by design: included inside a level's namespace.

// Advances a CRC over `bytes` zero bytes: multiplication by x^(8 bytes); the instruction itself reduces the
// product, and brings in x^32; the product's place in 64 bits another x.
template <uint64_t kBytes>
inline uint64_t crc_skip(uint64_t crc) {
  constexpr uint32_t factor = crc_x_power(8 * kBytes - 33);
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi32_si128((int)factor), 0);
  return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

inline uint64_t load_u64(const uint8_t *p) {
  uint64_t w;
  memcpy(&w, p, 8);
  return w;
}

template <size_t kStream>
inline void crc_three(uint64_t *crc, const uint8_t **data, size_t *bytes) {
  uint64_t a = *crc;
  const uint8_t *p = *data;
  for (; *bytes >= 3 * kStream; *bytes -= 3 * kStream, p += 3 * kStream) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      a = _mm_crc32_u64(a, load_u64(p + i));
      b = _mm_crc32_u64(b, load_u64(p + kStream + i));
      c = _mm_crc32_u64(c, load_u64(p + 2 * kStream + i));
    }
    a = crc_skip<2 * kStream>(a) ^ crc_skip<kStream>(b) ^ c;
  }
  *crc = a;
  *data = p;
}

inline uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t bytes) {
  uint64_t c = (uint32_t)~crc;
  crc_three<1024>(&c, &data, &bytes);
  crc_three<128>(&c, &data, &bytes);
  for (; bytes >= 8; bytes -= 8, data += 8) c = _mm_crc32_u64(c, load_u64(data));
  for (; bytes; --bytes, ++data) c = _mm_crc32_u8((uint32_t)c, *data);
  return ~(uint32_t)c;
}
