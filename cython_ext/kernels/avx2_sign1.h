// sign1 by AVX2, a word of 32 elements at a time; included by avx2_blocks.h inside a level's namespace.

// The magnitudes of eight elements, added to their lanes.
inline void add_magnitudes(__m256 magnitude, __m256d *low, __m256d *high) {
  *low = _mm256_add_pd(*low, _mm256_cvtps_pd(_mm256_castps256_ps128(magnitude)));
  *high = _mm256_add_pd(*high, _mm256_cvtps_pd(_mm256_extractf128_ps(magnitude, 1)));
}

template <bool kResidual>
size_t sign1_look_front(const EncodeRun &b, uint32_t *signs, uint32_t *nonzero, double *lanes,
                        size_t *count) {
  constexpr size_t ahead = 256;  // elements; see max_abs_of
  const __m256 positive = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)), zero = _mm256_setzero_ps();
  __m256d sums[8];
  for (__m256d &s : sums) s = _mm256_setzero_pd();
  size_t i = 0, found = 0;
  for (; i + 32 <= b.n; i += 32) {
    _mm_prefetch(reinterpret_cast<const char *>(b.x + i + ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char *>(b.x + i + ahead + 16), _MM_HINT_T0);
    if (kResidual) {
      _mm_prefetch(reinterpret_cast<const char *>(b.residual + i + ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char *>(b.residual + i + ahead + 16), _MM_HINT_T0);
    }
    uint32_t sign_word = 0, nonzero_word = 0;
    for (int k = 0; k < 4; ++k) {
      const __m256 v = load_sum<kResidual>(b, i + 8 * k);
      sign_word |= (uint32_t)_mm256_movemask_ps(v) << (8 * k);
      nonzero_word |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(v, zero, _CMP_NEQ_UQ)) << (8 * k);
      add_magnitudes(_mm256_and_ps(v, positive), &sums[2 * k], &sums[2 * k + 1]);
    }
    signs[i / 32] = sign_word;
    nonzero[i / 32] = nonzero_word;
    found += (size_t)__builtin_popcount(nonzero_word);
  }
  for (int k = 0; k < 8; ++k) _mm256_storeu_pd(lanes + 4 * k, sums[k]);
  *count = found;
  return i;
}

// Of the first `n` elements.
inline size_t sign1_lose_front(const EncodeRun &b, float scale, size_t n) {
  const __m256 magnitude = _mm256_set1_ps(scale), zero = _mm256_setzero_ps();
  const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32((int)0x80000000u));
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = load_sum<true>(b, i);
    const __m256 sent = _mm256_or_ps(magnitude, _mm256_and_ps(v, sign));
    const __m256 nonzero = _mm256_cmp_ps(v, zero, _CMP_NEQ_UQ);
    _mm256_storeu_ps(b.residual + i, _mm256_sub_ps(v, _mm256_and_ps(sent, nonzero)));
  }
  return i;
}

template <bool kMasked, bool kAdd>
size_t sign1_put_front(const DecodeRun &b, const uint8_t *mask, const uint8_t *signs, float scale) {
  const __m256i magnitude = _mm256_set1_epi32((int)gf_bits(scale));
  const __m256i top = _mm256_set1_epi32((int)0x80000000u), eight = _mm256_set1_epi32(8);
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32) {
    const __m256i w = _mm256_set1_epi32((int)load_u32(signs + i / 8));
    const __m256i m = kMasked ? _mm256_set1_epi32((int)load_u32(mask + i / 8)) : w;
    __m256i shift = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    for (size_t k = i; k < i + 32; k += 8) {
      __m256i v = _mm256_or_si256(magnitude, _mm256_and_si256(_mm256_sllv_epi32(w, shift), top));
      if (kMasked) v = _mm256_and_si256(v, _mm256_srai_epi32(_mm256_sllv_epi32(m, shift), 31));
      put8<kAdd>(b.out + k, _mm256_castsi256_ps(v));
      shift = _mm256_sub_epi32(shift, eight);
    }
  }
  return i;
}
