// log4 blocks by AVX2; included by avx2_blocks.h inside a level's namespace.

// Levels (a byte each, 0 to 7) and signs (a byte each, nonzero bit 0 where negative) to log4 codes.
inline __m256i log4_codes(__m256i levels, __m256i signs) {
  const __m256i eight = _mm256_and_si256(_mm256_slli_epi16(signs, 3), _mm256_set1_epi8(8));
  const __m256i zero = _mm256_cmpeq_epi8(levels, _mm256_setzero_si256());
  return _mm256_or_si256(levels, _mm256_andnot_si256(zero, eight));
}

// Exponent and first mantissa bit decide everything, so 16-bit lanes do. Counted from one below the smallest
// code that is not zero, they index a table; with e = 7 that code is 1 itself, the upper half of the
// denormals.
inline size_t encode_log4_nearest_front(const EncodeRun &b, uint32_t e) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const bool lowest = e == GF_LOG4_MIN_EXPONENT;
  const __m256i base = _mm256_set1_epi16((short)(lowest ? 0 : 2 * (e - 7u) - 1u));
  const __m256i table =
      _mm256_broadcastsi128_si256(lowest ? _mm_setr_epi8(0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7)
                                         : _mm_setr_epi8(0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7));
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32) {
    const __m256i w0 = _mm256_packus_epi32(_mm256_srli_epi32(load_bits(b.x + i), 22),
                                           _mm256_srli_epi32(load_bits(b.x + i + 8), 22));
    const __m256i w1 = _mm256_packus_epi32(_mm256_srli_epi32(load_bits(b.x + i + 16), 22),
                                           _mm256_srli_epi32(load_bits(b.x + i + 24), 22));
    const __m256i magnitude = _mm256_set1_epi16(0x1ff);
    const __m256i m0 = _mm256_subs_epu16(_mm256_and_si256(w0, magnitude), base);
    const __m256i m1 = _mm256_subs_epu16(_mm256_and_si256(w1, magnitude), base);
    const __m256i index = _mm256_min_epu8(_mm256_packus_epi16(m0, m1), _mm256_set1_epi8(15));
    const __m256i signs = _mm256_packus_epi16(_mm256_srli_epi16(w0, 9), _mm256_srli_epi16(w1, 9));
    const __m256i codes = log4_codes(_mm256_shuffle_epi8(table, index), signs);
    store_codes<4>(b.codes, i, _mm256_permutevar8x32_epi32(codes, order));
  }
  return i;
}

// Here the value that will be decoded comes first (the residual needs it), its code after.
template <bool kResidual, bool kStochastic>
size_t encode_log4_front(const EncodeRun &b, uint32_t e, uint64_t block_key) {
  const __m256i lowest = _mm256_set1_epi32((int)((e - 6u) << 23));
  const __m256i highest = _mm256_set1_epi32((int)(e << 23));
  const __m256i below_half = _mm256_set1_epi32((int)(e > 7u ? (e - 7u) << 23 : 0x400000u) - 1);
  const __m256i exponent = _mm256_set1_epi32(0x7f800000), minus = _mm256_set1_epi32((int)0x80000000u);
  const __m256i base = _mm256_set1_epi8((char)(e - 7u));
  Dither dither(block_key, (uint32_t)b.first);
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32) {
    __m256i code[4];
    for (int k = 0; k < 4; ++k) {
      const __m256 v = load_sum<kResidual>(b, i + 8 * k);
      const __m256i a = abs_of(v), sign = _mm256_and_si256(_mm256_castps_si256(v), minus);
      __m256i power, not_zero = _mm256_setzero_si256();
      if (kStochastic) {
        const __m256i added = _mm256_and_si256(_mm256_cmpgt_epi32(lowest, a), lowest);
        const __m256 from = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(added));
        const __m256i carried =
            _mm256_add_epi32(_mm256_castps_si256(from), _mm256_srli_epi32(dither.next(), 9));
        const __m256i up = _mm256_and_si256(carried, exponent);
        // lowest - lowest = 0, 2 lowest - lowest = lowest: exact.
        power = _mm256_castps_si256(_mm256_sub_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(added)));
        power = _mm256_min_epi32(power, highest);
        if (kResidual) not_zero = _mm256_cmpgt_epi32(power, _mm256_setzero_si256());
      } else {
        power = _mm256_and_si256(_mm256_add_epi32(a, _mm256_set1_epi32(0x400000)), exponent);
        power = _mm256_max_epi32(_mm256_min_epi32(power, highest), lowest);
        not_zero = _mm256_cmpgt_epi32(a, below_half);
      }
      __m256i value = _mm256_or_si256(power, sign);
      if (kResidual) value = _mm256_and_si256(value, not_zero);  // else log4_codes removes the zeros' signs
      if (kResidual) _mm256_storeu_ps(b.residual + i + 8 * k, _mm256_sub_ps(v, _mm256_castsi256_ps(value)));
      code[k] = _mm256_srli_epi32(value, 23);
    }
    // Sign and exponent, nine bits in lanes of 16; then a byte of each.
    const __m256i w0 = _mm256_packs_epi32(code[0], code[1]), w1 = _mm256_packs_epi32(code[2], code[3]);
    const __m256i low = _mm256_set1_epi16(0xff);
    const __m256i powers = _mm256_packus_epi16(_mm256_and_si256(w0, low), _mm256_and_si256(w1, low));
    const __m256i signs = _mm256_packus_epi16(_mm256_srli_epi16(w0, 8), _mm256_srli_epi16(w1, 8));
    const __m256i codes = log4_codes(_mm256_subs_epu8(powers, base), signs);
    store_codes<4>(b.codes, i, _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
  return i;
}

template <bool kAdd>
size_t decode_log4_front(const DecodeRun &b, uint32_t e) {
  float values[8];
  for (uint32_t m = 0; m < 8; ++m) values[m] = gf_log4_value(m, e);
  const __m256 table = _mm256_loadu_ps(values);
  const __m256i shifts = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32)
    for (size_t k = i; k < i + 32; k += 8) {
      const __m256i w = _mm256_sllv_epi32(_mm256_set1_epi32((int)load_u32(b.codes + k / 2)), shifts);
      const __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(w, 28));
      const __m256 sign = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0x80000000u)));
      put8<kAdd>(b.out + k, _mm256_or_ps(magnitude, sign));
    }
  return i;
}
