// bf16 and none by AVX2; included by avx2_blocks.h inside a level's namespace.

// Eight elements of which one is not finite are left to the scalar loop.
inline bool all_finite(__m256i magnitude) {
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)GF_MAX_BITS))) == 0;
}

template <bool kResidual>
size_t encode_bf16_front(const EncodeRun &b, uint32_t *m) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
  size_t i = 0;
  for (; i + 8 <= b.n; i += 8) {
    const __m256 v = load_sum<kResidual>(b, i);
    const __m256i u = _mm256_castps_si256(v);
    if (!all_finite(abs_of(v))) {
      *m = encode_bf16_range(b, i, i + 8, *m);
      continue;
    }
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(half, last)), 16);
    const __m256i infinite = _mm256_cmpeq_epi32(_mm256_and_si256(r, half), _mm256_set1_epi32(0x7f80));
    r = _mm256_add_epi32(r, infinite);  // minus one: the largest finite value
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(b.codes + 2 * i), _mm256_castsi256_si128(packed));
    if (kResidual)
      _mm256_storeu_ps(b.residual + i, _mm256_sub_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(r, 16))));
  }
  return i;
}

template <bool kAdd>
size_t decode_bf16_front(const DecodeRun &b) {
  size_t i = 0;
  for (; i + 8 <= b.n; i += 8) {
    const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i *>(b.codes + 2 * i));
    put8<kAdd>(b.out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(w), 16)));
  }
  return i;
}

template <bool kResidual>
size_t encode_none_front(const EncodeRun &b, uint32_t *m) {
  size_t i = 0;
  for (; i + 8 <= b.n; i += 8) {
    const __m256 v = load_sum<kResidual>(b, i);
    if (!all_finite(abs_of(v))) {
      *m = encode_none_range(b, i, i + 8, *m);
      continue;
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(b.codes + 4 * i), _mm256_castps_si256(v));
    if (kResidual) _mm256_storeu_ps(b.residual + i, _mm256_setzero_ps());
  }
  return i;
}
