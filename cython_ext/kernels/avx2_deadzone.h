// deadzone_blocks.h's parts by AVX2 and BMI2. Same results, bit for bit, as the plain loops. No include guard
// by design.

inline uint32_t gather_bits(uint32_t bits, uint32_t mask) { return _pext_u32(bits, mask); }
inline uint32_t scatter_bits(uint32_t bits, uint32_t mask) { return _pdep_u32(bits, mask); }

// The sign bits of 32 floats or integers.
inline uint32_t sign_bits(__m256i a, __m256i b, __m256i c, __m256i d) {
  return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(a)) |
         (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(b)) << 8 |
         (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(c)) << 16 |
         (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(d)) << 24;
}

// All ones in those of eight lanes whose bit is set.
inline __m256i lanes_of(uint32_t mask, int quarter) {
  const __m256i places = _mm256_slli_epi32(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), 8 * quarter);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)mask), places), places);
}

class Magnitudes {
 public:
  Magnitudes() { clear(); }
  void clear() {
    for (__m256i &v : v_) v = _mm256_setzero_si256();
  }
  void load(const uint32_t *m) {
    for (int i = 0; i < 4; ++i) v_[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(m) + i);
  }

  void store(uint32_t *m) const {
    for (int i = 0; i < 4; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i *>(m) + i, v_[i]);
  }

  // Where no sum of x and residual had to be held back from overflow.
  void quantize(const float *x, float *residual, const gf_dz_block &p, uint32_t most, uint32_t *coded,
                uint32_t *negative) {
    if (residual) {
      quantize_of<true>(x, residual, p, most, coded, negative);
    } else {
      quantize_of<false>(x, residual, p, most, coded, negative);
    }
  }

  uint32_t sum() const {
    const __m256i s = _mm256_add_epi32(_mm256_add_epi32(v_[0], v_[1]), _mm256_add_epi32(v_[2], v_[3]));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(t);
  }

  uint32_t bit(unsigned b) const {
    const __m128i up = _mm_cvtsi32_si128((int)(31 - b));
    return sign_bits(_mm256_sll_epi32(v_[0], up), _mm256_sll_epi32(v_[1], up), _mm256_sll_epi32(v_[2], up),
                     _mm256_sll_epi32(v_[3], up));
  }

  uint32_t above(unsigned k, uint32_t j) const {
    const __m256i below = _mm256_set1_epi32((int)((j << k) - 1u));
    return sign_bits(_mm256_cmpgt_epi32(v_[0], below), _mm256_cmpgt_epi32(v_[1], below),
                     _mm256_cmpgt_epi32(v_[2], below), _mm256_cmpgt_epi32(v_[3], below));
  }

  void add(uint32_t mask, unsigned b) {
    const __m256i one = _mm256_set1_epi32((int)(1u << b));
    for (int i = 0; i < 4; ++i) v_[i] = _mm256_add_epi32(v_[i], _mm256_and_si256(lanes_of(mask, i), one));
  }

  void put(float *out, uint32_t coded, uint32_t negative, float step) const {
    const __m256 s = _mm256_set1_ps(step), most = _mm256_castsi256_ps(_mm256_set1_epi32((int)GF_MAX_BITS));
    const __m256i one = _mm256_set1_epi32(1), minus = _mm256_set1_epi32((int)0x80000000u);
    // Lanes without a code add -0, which changes nothing.
    const uint32_t signs = negative | ~coded;
    for (int i = 0; i < 4; ++i) {
      const __m256i q = _mm256_and_si256(_mm256_add_epi32(v_[i], one), lanes_of(coded, i));
      const __m256 v = _mm256_min_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(q), s), most);
      const __m256i sign = _mm256_and_si256(lanes_of(signs, i), minus);
      float *at = out + 8 * i;
      _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), _mm256_or_ps(v, _mm256_castsi256_ps(sign))));
    }
  }

 private:
  template <bool kResidual>
  void quantize_of(const float *x, float *residual, const gf_dz_block &p, uint32_t most, uint32_t *coded,
                   uint32_t *negative) {
    const __m256 pre = _mm256_set1_ps(p.pre), inv = _mm256_set1_ps(p.inv), step = _mm256_set1_ps(p.step);
    const __m256 offset = _mm256_set1_ps(p.offset), limit = _mm256_set1_ps((float)most);
    const __m256 largest_float = _mm256_castsi256_ps(_mm256_set1_epi32((int)GF_MAX_BITS));
    const __m256i zero = _mm256_setzero_si256();
    __m256i some[4], signs[4];
    EncodeRun b = {};
    b.x = x;
    b.residual = residual;
    for (int i = 0; i < 4; ++i) {
      const __m256 v = load_sum<kResidual>(b, (size_t)(8 * i));
      const __m256i a = abs_of(v);
      __m256 t = _mm256_mul_ps(_mm256_mul_ps(_mm256_castsi256_ps(a), pre), inv);
      t = _mm256_min_ps(_mm256_add_ps(t, offset), limit);
      const __m256i q = _mm256_cvttps_epi32(t);
      some[i] = _mm256_cmpgt_epi32(q, zero);
      signs[i] = _mm256_castps_si256(v);
      v_[i] = _mm256_add_epi32(q, some[i]);  // less one where it is not zero
      if (kResidual) {
        const __m256 value = _mm256_min_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(q), step), largest_float);
        const __m256i sign =
            _mm256_and_si256(_mm256_and_si256(signs[i], _mm256_set1_epi32((int)0x80000000u)), some[i]);
        _mm256_storeu_ps(residual + 8 * i, _mm256_sub_ps(v, _mm256_or_ps(value, _mm256_castsi256_ps(sign))));
      }
    }
    *coded = sign_bits(some[0], some[1], some[2], some[3]);
    *negative = sign_bits(signs[0], signs[1], signs[2], signs[3]);
  }

  __m256i v_[4];
};
