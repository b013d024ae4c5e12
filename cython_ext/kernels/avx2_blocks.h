// The blocks by AVX2 and F16C, 32 elements at a time. Same results, bit for bit, as the scalar loops: the
// comments say where that is not obvious. No include guard by design: included inside a level's namespace.

inline __m256i load_bits(const float *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }

template <bool kResidual>
inline __m256 load_sum(const EncodeRun &b, size_t i) {
  const __m256 v = _mm256_loadu_ps(b.x + i);
  return kResidual ? _mm256_add_ps(v, _mm256_loadu_ps(b.residual + i)) : v;
}

inline __m256i abs_of(__m256 v) {
  return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}

inline uint32_t largest(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return (uint32_t)_mm_cvtsi128_si32(m);
}

// Magnitudes as integers are in the order of the floats, with infinity and NaN on top.
template <bool kResidual>
inline size_t max_abs_of(const EncodeRun &b, uint32_t *m) {
  // This pass is the first to touch the data, and short of work: 1 KiB ahead it asks for what comes next
  // (beyond the end that does no harm). Measured: 20 % on encoding with a residual, from memory.
  constexpr size_t ahead = 256;
  __m256i m0 = _mm256_setzero_si256(), m1 = m0, m2 = m0, m3 = m0;
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32) {
    _mm_prefetch(reinterpret_cast<const char *>(b.x + i + ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char *>(b.x + i + ahead + 16), _MM_HINT_T0);
    if (kResidual) {
      _mm_prefetch(reinterpret_cast<const char *>(b.residual + i + ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char *>(b.residual + i + ahead + 16), _MM_HINT_T0);
    }
    m0 = _mm256_max_epi32(m0, abs_of(load_sum<kResidual>(b, i)));
    m1 = _mm256_max_epi32(m1, abs_of(load_sum<kResidual>(b, i + 8)));
    m2 = _mm256_max_epi32(m2, abs_of(load_sum<kResidual>(b, i + 16)));
    m3 = _mm256_max_epi32(m3, abs_of(load_sum<kResidual>(b, i + 24)));
  }
  *m = largest(_mm256_max_epi32(_mm256_max_epi32(m0, m1), _mm256_max_epi32(m2, m3)));
  return i;
}

// 4 x 8 integers in [-128, 127] to 32 bytes, in order.
inline __m256i pack_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i w = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  return _mm256_permutevar8x32_epi32(w, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// 32 codes, a byte each, to where the codes of elements i..i+31 belong.
template <int kBits>
inline void store_codes(uint8_t *codes, size_t i, __m256i bytes) {
  if (kBits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes + i), bytes);
  } else if (kBits == 4) {
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f));
    const __m256i w = _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x1001));  // even + 16 odd
    const __m256i p = _mm256_permute4x64_epi64(_mm256_packus_epi16(w, w), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(codes + i / 2), _mm256_castsi256_si128(p));
  } else {
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(0x03));
    const __m256i w = _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x0401));
    const __m256i q = _mm256_madd_epi16(w, _mm256_set1_epi32(0x00100001));
    const __m256i s = _mm256_shuffle_epi8(q, _mm256_set1_epi32(0x0c080400));
    const __m256i p = _mm256_permutevar8x32_epi32(s, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(codes + i / 4), _mm256_castsi256_si128(p));
  }
}

// gf_dither of eight consecutive indices; `counter` is key + index * GF_WEYL.
struct Dither {
  __m256i counter, high;

  Dither(uint64_t block_key, uint32_t index)
      : counter(_mm256_add_epi32(
            _mm256_set1_epi32((int)((uint32_t)block_key + index * GF_WEYL)),
            _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)GF_WEYL)))),
        high(_mm256_set1_epi32((int)(uint32_t)(block_key >> 32))) {}

  __m256i next() {
    __m256i t = _mm256_xor_si256(_mm256_xor_si256(counter, _mm256_srli_epi32(counter, 16)), high);
    t = _mm256_mullo_epi32(t, _mm256_set1_epi32((int)GF_HASH_1));
    t = _mm256_xor_si256(t, _mm256_srli_epi32(t, 15));
    counter = _mm256_add_epi32(counter, _mm256_set1_epi32((int)(8u * GF_WEYL)));
    return _mm256_mullo_epi32(t, _mm256_set1_epi32((int)GF_HASH_2));
  }

  __m256 offset() {
    const __m256i odd = _mm256_or_si256(_mm256_srai_epi32(next(), 15), _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(odd), _mm256_set1_ps(1.0f / 131072.0f));
  }
};

template <int kBits, bool kResidual, bool kStochastic>
size_t encode_uniform_front(const EncodeRun &b, const gf_uniform_block &p, uint64_t block_key) {
  const __m256 inv = _mm256_set1_ps(p.inv), step = _mm256_set1_ps(p.step);
  const __m256i top = _mm256_set1_epi32(p.q), bottom = _mm256_set1_epi32(-p.q);
  Dither dither(block_key, (uint32_t)b.first);
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32) {
    __m256i c[4];
    for (int k = 0; k < 4; ++k) {
      const __m256 v = load_sum<kResidual>(b, i + 8 * k);
      __m256 scaled = _mm256_mul_ps(v, inv);
      if (kStochastic) scaled = _mm256_add_ps(scaled, dither.offset());
      c[k] = _mm256_cvtps_epi32(scaled);
      // Without an offset nothing exceeds the largest code: |v| * inv <= q (1 + 2^-23).
      if (kStochastic) c[k] = _mm256_max_epi32(_mm256_min_epi32(c[k], top), bottom);
      if (kResidual)
        _mm256_storeu_ps(b.residual + i + 8 * k,
                         _mm256_sub_ps(v, _mm256_mul_ps(_mm256_cvtepi32_ps(c[k]), step)));
    }
    store_codes<kBits>(b.codes, i, pack_bytes(c[0], c[1], c[2], c[3]));
  }
  return i;
}

// Codes of elements i..i+7, sign extended.
template <int kBits>
inline __m256i load_codes(const uint8_t *codes, size_t i) {
  if (kBits == 8) return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(codes + i)));
  if (kBits == 4) {
    const __m256i w = _mm256_set1_epi32((int)load_u32(codes + i / 2));
    return _mm256_srai_epi32(_mm256_sllv_epi32(w, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0)), 28);
  }
  const __m256i w = _mm256_set1_epi32(load_u16(codes + i / 4, 0));
  return _mm256_srai_epi32(_mm256_sllv_epi32(w, _mm256_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16)), 30);
}

template <bool kAdd>
inline void put8(float *out, __m256 v) {
  _mm256_storeu_ps(out, kAdd ? _mm256_add_ps(_mm256_loadu_ps(out), v) : v);
}

template <int kBits, bool kAdd>
size_t decode_uniform_front(const DecodeRun &b, const gf_uniform_block &p) {
  const __m256 step = _mm256_set1_ps(p.step);
  size_t i = 0;
  for (; i + 32 <= b.n; i += 32)
    for (size_t k = i; k < i + 32; k += 8)
      put8<kAdd>(b.out + k, _mm256_mul_ps(_mm256_cvtepi32_ps(load_codes<kBits>(b.codes, k)), step));
  return i;
}

#include "avx2_log4.h"
#include "avx2_half.h"
#include "avx2_plain.h"
#include "avx2_sign1.h"
#include "avx2_topk.h"

struct Simd {
  static size_t max_abs(const EncodeRun &b, uint32_t *m) {
    return b.residual ? max_abs_of<true>(b, m) : max_abs_of<false>(b, m);
  }

  template <int kBits>
  static size_t encode_uniform(const EncodeRun &b, const gf_uniform_block &p, uint64_t key) {
    if (b.stochastic)
      return b.residual ? encode_uniform_front<kBits, true, true>(b, p, key)
                        : encode_uniform_front<kBits, false, true>(b, p, key);
    return b.residual ? encode_uniform_front<kBits, true, false>(b, p, key)
                      : encode_uniform_front<kBits, false, false>(b, p, key);
  }

  template <int kBits>
  static size_t decode_uniform(const DecodeRun &b, const gf_uniform_block &p) {
    return b.add ? decode_uniform_front<kBits, true>(b, p) : decode_uniform_front<kBits, false>(b, p);
  }

  static size_t encode_log4(const EncodeRun &b, uint32_t e, uint64_t key) {
    if (b.stochastic)
      return b.residual ? encode_log4_front<true, true>(b, e, key)
                        : encode_log4_front<false, true>(b, e, key);
    return b.residual ? encode_log4_front<true, false>(b, e, key) : encode_log4_nearest_front(b, e);
  }

  static size_t decode_log4(const DecodeRun &b, uint32_t e) {
    return b.add ? decode_log4_front<true>(b, e) : decode_log4_front<false>(b, e);
  }

  static size_t encode_fp16(const EncodeRun &b, uint32_t e) {
    return b.residual ? encode_fp16_front<true>(b, e) : encode_fp16_front<false>(b, e);
  }

  static size_t decode_fp16(const DecodeRun &b, uint32_t e) {
    return b.add ? decode_fp16_front<true>(b, e) : decode_fp16_front<false>(b, e);
  }

  static size_t encode_bf16(const EncodeRun &b, uint32_t *m) {
    return b.residual ? encode_bf16_front<true>(b, m) : encode_bf16_front<false>(b, m);
  }

  static size_t decode_bf16(const DecodeRun &b) {
    return b.add ? decode_bf16_front<true>(b) : decode_bf16_front<false>(b);
  }

  static size_t encode_none(const EncodeRun &b, uint32_t *m) {
    return b.residual ? encode_none_front<true>(b, m) : encode_none_front<false>(b, m);
  }

  template <class Words>
  static size_t sign1_look(const EncodeRun &b, Words *w) {
    return b.residual ? sign1_look_front<true>(b, w->signs, w->nonzero, w->lanes, &w->count)
                      : sign1_look_front<false>(b, w->signs, w->nonzero, w->lanes, &w->count);
  }

  static size_t sign1_lose(const EncodeRun &b, float scale, size_t n) {
    return sign1_lose_front(b, scale, n);
  }

  static size_t sign1_put(const DecodeRun &b, const uint8_t *mask, const uint8_t *signs, float scale) {
    if (mask)
      return b.add ? sign1_put_front<true, true>(b, mask, signs, scale)
                   : sign1_put_front<true, false>(b, mask, signs, scale);
    return b.add ? sign1_put_front<false, true>(b, mask, signs, scale)
                 : sign1_put_front<false, false>(b, mask, signs, scale);
  }

  static bool topk_digits(const EncodeRun &b, size_t i, unsigned shift, uint32_t *digits, size_t *zeros) {
    return b.residual ? topk_digits_of<true>(b, i, shift, digits, zeros)
                      : topk_digits_of<false>(b, i, shift, digits, zeros);
  }

  static uint32_t topk_within(const EncodeRun &b, size_t i, uint32_t first, uint32_t last) {
    return b.residual ? topk_within_of<true>(b, i, first, last) : topk_within_of<false>(b, i, first, last);
  }

  static void topk_owe(const EncodeRun &b, size_t i) {
    _mm256_storeu_ps(b.residual + i, load_sum<true>(b, i));
  }

  static size_t load_half(const uint8_t *src, float *dst, size_t n, uint32_t *m) {
    return load_half_front(src, dst, n, m);
  }

  static size_t store_half(const float *src, float scale, uint8_t *dst, size_t n) {
    return store_half_front(src, scale, dst, n);
  }
};
