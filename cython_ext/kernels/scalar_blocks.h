// The codecs' blocks as plain loops over the functions of elements.h. Included by each level's file inside
// its own namespace: it is the whole implementation of "portable", and the tails and rare blocks of the
// others. No include guard by design; levels.h, elements.h and gf_api.h come before it.

inline uint32_t max_abs_bits(const float *x, const float *r, size_t begin, size_t end, uint32_t m) {
  if (r) {
    for (size_t i = begin; i < end; ++i) {
      const uint32_t a = gf_abs_bits(gf_add(x[i], r[i]));
      m = a > m ? a : m;
    }
  } else {
    for (size_t i = begin; i < end; ++i) {
      const uint32_t a = gf_abs_bits(x[i]);
      m = a > m ? a : m;
    }
  }
  return m;
}

// For a block whose sums are not all finite: the maximum with overflow of the addition held back.
inline uint32_t max_abs_bits_saturated(const float *x, const float *r, size_t n) {
  uint32_t m = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t a = gf_abs_bits(gf_add_residual(x[i], r[i]));
    m = a > m ? a : m;
  }
  return m;
}

inline uint32_t block_max(const float *x, const float *r, size_t n) {
  const uint32_t m = max_abs_bits(x, r, 0, n, 0);
  return m >= GF_INF_BITS && r ? max_abs_bits_saturated(x, r, n) : m;
}

// A value of the block, with the residual where there is one.
inline float sum_at(const float *x, const float *r, size_t i) {
  return r ? gf_add_residual(x[i], r[i]) : x[i];
}

inline void store_u32(uint8_t *p, uint32_t u) { memcpy(p, &u, sizeof u); }

inline uint32_t load_u32(const uint8_t *p) {
  uint32_t u;
  memcpy(&u, p, sizeof u);
  return u;
}

// `code` into the zeroed place of element i.
template <int kBits>
inline void put_code(uint8_t *codes, size_t i, uint32_t code) {
  if (kBits == 8) {
    codes[i] = (uint8_t)code;
  } else {
    constexpr size_t per_byte = 8 / kBits;
    const unsigned shift = (unsigned)(i % per_byte) * kBits;
    const uint8_t low = (uint8_t)((code & ((1u << kBits) - 1u)) << shift);
    codes[i / per_byte] = shift ? (uint8_t)(codes[i / per_byte] | low) : low;
  }
}

template <int kBits>
inline uint32_t get_code(const uint8_t *codes, size_t i) {
  constexpr size_t per_byte = 8 / kBits;
  return (uint32_t)(codes[i / per_byte] >> (i % per_byte * kBits)) & ((1u << kBits) - 1u);
}

inline size_t code_bytes(int bits, size_t n) { return (n * (size_t)bits + 7) / 8; }

inline void put(float *out, size_t i, float value, bool add) { out[i] = add ? gf_add(out[i], value) : value; }

inline void put_nan(float *out, size_t n, bool add) {
  (void)add;  // whatever is there, the sum is NaN; always the canonical one
  for (size_t i = 0; i < n; ++i) out[i] = gf_float(GF_CANONICAL_NAN);
}

// ---- Uniform --------------------------------------------------------------------------------------

template <int kBits>
inline void encode_uniform_range(const EncodeRun &run, const gf_uniform_block &p, uint64_t block_key,
                                 size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const float v = sum_at(run.x, run.residual, i);
    const float offset =
        run.stochastic ? gf_dither_offset(gf_dither(block_key, (uint32_t)(run.first + i))) : 0.0f;
    const int32_t c = gf_uniform_code(v, offset, p);
    put_code<kBits>(run.codes, i, (uint32_t)c);
    if (run.residual) run.residual[i] = gf_sub(v, gf_uniform_value(c, p));
  }
}

template <int kBits>
inline int32_t signed_code(uint32_t code) {
  return (int32_t)(code << (32 - kBits)) >> (32 - kBits);
}

template <int kBits>
inline void decode_uniform_range(const DecodeRun &run, const gf_uniform_block &p, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i)
    put(run.out, i, gf_uniform_value(signed_code<kBits>(get_code<kBits>(run.codes, i)), p), run.add);
}

// ---- log4 -----------------------------------------------------------------------------------------

inline void encode_log4_range(const EncodeRun &run, uint32_t e, uint64_t block_key, size_t begin,
                              size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const float v = sum_at(run.x, run.residual, i);
    const uint32_t a = gf_abs_bits(v);
    const uint32_t level = run.stochastic
                               ? gf_log4_stochastic(a, e, gf_dither(block_key, (uint32_t)(run.first + i)))
                               : gf_log4_nearest(a, e);
    const uint32_t c = gf_log4_code(level, v);
    put_code<4>(run.codes, i, c);
    if (run.residual) run.residual[i] = gf_sub(v, gf_log4_value(c, e));
  }
}

inline void decode_log4_range(const DecodeRun &run, uint32_t e, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) put(run.out, i, gf_log4_value(get_code<4>(run.codes, i), e), run.add);
}

// ---- 16-bit floats --------------------------------------------------------------------------------

inline void store_u16(uint8_t *p, size_t i, uint16_t h) { memcpy(p + 2 * i, &h, sizeof h); }

inline uint16_t load_u16(const uint8_t *p, size_t i) {
  uint16_t h;
  memcpy(&h, p + 2 * i, sizeof h);
  return h;
}

inline void encode_fp16_range(const EncodeRun &run, uint32_t e, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const float v = sum_at(run.x, run.residual, i);
    const uint16_t h = gf_half_code(v, e);
    store_u16(run.codes, i, h);
    if (run.residual) run.residual[i] = gf_sub(v, gf_mul(gf_float_from_half(h), gf_half_unscale(e)));
  }
}

inline void decode_fp16_range(const DecodeRun &run, uint32_t e, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i)
    put(run.out, i, gf_mul(gf_float_from_half(load_u16(run.codes, i)), gf_half_unscale(e)), run.add);
}

// bf16 and none have no blocks: an element that is not finite stays what it is, and so does its residual.
// Both return the largest magnitude, as bits.
inline uint32_t encode_bf16_range(const EncodeRun &run, size_t begin, size_t end, uint32_t m) {
  for (size_t i = begin; i < end; ++i) {
    const float v = sum_at(run.x, run.residual, i);
    const uint16_t b = gf_bf16_saturated(v);
    store_u16(run.codes, i, b);
    const uint32_t a = gf_abs_bits(v);
    m = a > m ? a : m;
    if (run.residual && a < GF_INF_BITS) run.residual[i] = gf_sub(v, gf_float_from_bf16(b));
  }
  return m;
}

inline uint32_t encode_none_range(const EncodeRun &run, size_t begin, size_t end, uint32_t m) {
  for (size_t i = begin; i < end; ++i) {
    const float v = sum_at(run.x, run.residual, i);
    const uint32_t a = gf_abs_bits(v);
    store_u32(run.codes + 4 * i, a > GF_INF_BITS ? GF_CANONICAL_NAN : gf_bits(v));
    m = a > m ? a : m;
    if (run.residual && a < GF_INF_BITS) run.residual[i] = 0.0f;
  }
  return m;
}

inline void decode_bf16_range(const DecodeRun &run, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) put(run.out, i, gf_float_from_bf16(load_u16(run.codes, i)), run.add);
}

// Shift arithmetic on 8 bytes at once: what crosses a byte's border lands on bits that the mask drops.
inline uint64_t invalid_codes(int bits, uint64_t w) {
  if (bits == 4) return w & 0x8888888888888888ull & ~(w << 1 | w << 2 | w << 3);
  return w & 0xaaaaaaaaaaaaaaaaull & ~(w << 1);
}

inline bool codes_valid(int bits, const uint8_t *codes, size_t bytes) {
  if (bits == 8) {
    unsigned char found = 0;
    for (size_t i = 0; i < bytes; ++i) found |= codes[i] == 0x80;
    return !found;
  }
  uint64_t bad = 0;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t w;
    memcpy(&w, codes + i, 8);
    bad |= invalid_codes(bits, w);
  }
  for (; i < bytes; ++i) bad |= invalid_codes(bits, codes[i]);
  return bad == 0;
}
