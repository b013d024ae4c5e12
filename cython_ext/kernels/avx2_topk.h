// topk by AVX2, eight elements at a time; included by avx2_blocks.h inside a level's namespace.

// The magnitudes' bits, shifted; false, and nothing is done, where one is not finite.
template <bool kResidual>
inline bool topk_digits_of(const EncodeRun &b, size_t i, unsigned shift, uint32_t *digits, size_t *zeros) {
  const __m256i a = abs_of(load_sum<kResidual>(b, i));
  if (!all_finite(a)) return false;
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(digits), _mm256_srli_epi32(a, (int)shift));
  const __m256i zero = _mm256_cmpeq_epi32(a, _mm256_setzero_si256());
  *zeros += (size_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(zero)));
  return true;
}

// A bit for each element whose magnitude's bits are from `first` to `last`, or whose sum is not finite: then
// the addition may have to be held back from overflow, which the scalar loop sees to.
template <bool kResidual>
inline uint32_t topk_within_of(const EncodeRun &b, size_t i, uint32_t first, uint32_t last) {
  const __m256i a = abs_of(load_sum<kResidual>(b, i));
  const __m256i above = _mm256_cmpgt_epi32(a, _mm256_set1_epi32((int)first - 1));
  const __m256i beyond = _mm256_cmpgt_epi32(a, _mm256_set1_epi32((int)last));
  const __m256i sick = _mm256_cmpgt_epi32(a, _mm256_set1_epi32((int)GF_MAX_BITS));
  const __m256i found = _mm256_or_si256(_mm256_andnot_si256(beyond, above), sick);
  return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(found));
}
