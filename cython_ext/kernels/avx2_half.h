// binary16 by F16C; included by avx2_blocks.h inside a level's namespace. The instructions do not look at
// MXCSR's flush bits, and round as the immediate says.

inline __m128i half_of(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

inline __m256 float_of(const uint8_t *codes, size_t i) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes + 2 * i)));
}

template <bool kResidual>
size_t encode_fp16_front(const EncodeRun &b, uint32_t e) {
  const __m256 scale = _mm256_set1_ps(gf_half_scale(e)), unscale = _mm256_set1_ps(gf_half_unscale(e));
  size_t i = 0;
  for (; i + 8 <= b.n; i += 8) {
    const __m256 v = load_sum<kResidual>(b, i);
    const __m128i h = half_of(_mm256_mul_ps(v, scale));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(b.codes + 2 * i), h);
    if (kResidual)
      _mm256_storeu_ps(b.residual + i, _mm256_sub_ps(v, _mm256_mul_ps(_mm256_cvtph_ps(h), unscale)));
  }
  return i;
}

template <bool kAdd>
size_t decode_fp16_front(const DecodeRun &b, uint32_t e) {
  const __m256 unscale = _mm256_set1_ps(gf_half_unscale(e));
  size_t i = 0;
  for (; i + 8 <= b.n; i += 8) put8<kAdd>(b.out + i, _mm256_mul_ps(float_of(b.codes, i), unscale));
  return i;
}

inline bool any_nan(__m256 v) { return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0; }

// The instructions keep a NaN's payload, the element functions do not.
inline size_t load_half_front(const uint8_t *src, float *dst, size_t n, uint32_t *m) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)GF_CANONICAL_NAN));
  __m256i largest_bits = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 raw = float_of(src, i);
    const __m256 v = _mm256_blendv_ps(raw, nan, _mm256_cmp_ps(raw, raw, _CMP_UNORD_Q));
    largest_bits = _mm256_max_epi32(largest_bits, abs_of(v));
    _mm256_storeu_ps(dst + i, v);
  }
  *m = largest(largest_bits);
  return i;
}

inline size_t store_half_front(const float *src, float scale, uint8_t *dst, size_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(src + i), factor);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(dst + 2 * i), half_of(v));
    if (any_nan(v))
      for (size_t k = i; k < i + 8; ++k) store_u16(dst, k, gf_half_from_float(gf_mul(src[k], scale)));
  }
  return i;
}
