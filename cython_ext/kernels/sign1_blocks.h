// The blocks of sign1. Each level provides, in `struct Simd`, the fronts: loops over whole words of 32
// elements, which return how many elements they did. No include guard by design: included inside each
// level's namespace, after scalar_blocks.h and the level's Simd.

// What is found out about a block, in words of 32 elements.
struct Sign1Words {
  uint32_t signs[32768 / 32];    // 1: negative, or minus zero
  uint32_t nonzero[32768 / 32];  // the last word may be incomplete, and is filled up with zeros
  double lanes[GF_SIGN1_LANES];  // sums of magnitudes
  size_t count;                  // of elements that are not zero
};

inline double sign1_sum(const double *lanes) {
  double s[GF_SIGN1_LANES];
  memcpy(s, lanes, sizeof s);
  for (size_t half = GF_SIGN1_LANES / 2; half; half /= 2)
    for (size_t j = 0; j < half; ++j) s[j] += s[j + half];
  return s[0];
}

// From element `begin`, where a word begins.
inline void sign1_look(const EncodeRun &b, size_t begin, Sign1Words *w) {
  for (; begin < b.n; begin += 32) {
    uint32_t signs = 0, nonzero = 0;
    for (size_t i = begin; i < b.n && i < begin + 32; ++i) {
      const float v = sum_at(b.x, b.residual, i);
      signs |= (gf_bits(v) >> 31) << (i - begin);
      nonzero |= (gf_abs_bits(v) != 0 ? 1u : 0u) << (i - begin);
      w->lanes[i - begin] += (double)gf_float(gf_abs_bits(v));
    }
    w->signs[begin / 32] = signs;
    w->nonzero[begin / 32] = nonzero;
    w->count += (size_t)__builtin_popcount(nonzero);
  }
}

inline void sign1_lose(const EncodeRun &b, float scale, size_t begin) {
  for (size_t i = begin; i < b.n; ++i) {
    const float v = sum_at(b.x, b.residual, i);
    b.residual[i] = gf_sub(v, gf_abs_bits(v) ? gf_sign1_value(v, scale) : 0.0f);
  }
}

// One block; returns the bytes of its bits.
inline size_t encode_sign1_block(const EncodeRun &b, Sign1Words *w, bool *nonfinite) {
  memset(w->lanes, 0, sizeof w->lanes);
  w->count = 0;
  size_t front = Simd::sign1_look(b, w);  // whose sums with the residual are plain ones, if all are finite
  sign1_look(b, front, w);
  double sum = sign1_sum(w->lanes);
  if (!(sum < HUGE_VAL) && b.residual) {
    memset(w->lanes, 0, sizeof w->lanes);
    w->count = 0;
    sign1_look(b, 0, w);
    sum = sign1_sum(w->lanes);
    front = 0;
  }
  const size_t bytes = (b.n + 7) / 8;
  if (!(sum < HUGE_VAL)) {
    *nonfinite = true;
    store_u32(b.scales, GF_CANONICAL_NAN);
    return 0;
  }
  if (w->count == 0) {
    store_u32(b.scales, 0);
    if (b.residual) memset(b.residual, 0, b.n * sizeof(float));
    return 0;
  }
  const float scale = gf_sign1_scale(sum, (uint32_t)w->count);
  const bool masked = w->count < b.n;
  if (b.residual) sign1_lose(b, scale, Simd::sign1_lose(b, scale, front));
  store_u32(b.scales, gf_bits(scale) | (masked ? GF_SIGN1_MASKED : 0u));
  if (masked) {
    for (size_t i = 0; i < (b.n + 31) / 32; ++i) w->signs[i] &= w->nonzero[i];
    memcpy(b.codes, w->nonzero, bytes);
  }
  memcpy(b.codes + (masked ? bytes : 0), w->signs, bytes);
  return masked ? 2 * bytes : bytes;
}

inline size_t encode_sign1(const EncodeRun &run, bool *nonfinite) {
  Sign1Words words;
  EncodeRun b = run;
  for (size_t begin = 0; begin < run.n; begin += run.block) {
    b.x = run.x + begin;
    b.residual = run.residual ? run.residual + begin : nullptr;
    b.n = run.n - begin < run.block ? run.n - begin : run.block;
    b.codes += encode_sign1_block(b, &words, nonfinite);
    b.scales += 4;
  }
  return (size_t)(b.codes - run.codes);
}

// Bits for each element of a block with this entry in the table.
inline size_t sign1_parts(uint32_t entry) {
  if (entry == 0 || entry == GF_CANONICAL_NAN) return 0;
  return entry & GF_SIGN1_MASKED ? 2 : 1;
}

// Up to 32 bits of a part of `n` elements, from element `begin` on; what is beyond its last byte is zero.
inline uint32_t sign1_word(const uint8_t *bits, size_t begin, size_t n) {
  uint32_t w = 0;
  const size_t left = (n + 7) / 8 - begin / 8;
  memcpy(&w, bits + begin / 8, left < 4 ? left : 4);
  return w;
}

inline uint32_t sign1_full(size_t begin, size_t n) {
  return n - begin < 32 ? (1u << (n - begin)) - 1u : 0xffffffffu;
}

// Whether an encoder can have made these bits of a block.
inline bool check_sign1_block(const uint8_t *codes, size_t n, bool masked) {
  const uint8_t *const signs = codes + (masked ? (n + 7) / 8 : 0);
  if (!masked) {
    const size_t last = (n - 1) / 32 * 32;
    return !(sign1_word(signs, last, n) & ~sign1_full(last, n));
  }
  uint32_t wrong = 0, some = 0, missing = 0;
  for (size_t begin = 0; begin < n; begin += 32) {
    const uint32_t full = sign1_full(begin, n), mask = sign1_word(codes, begin, n);
    wrong |= (mask & ~full) | (sign1_word(signs, begin, n) & ~mask);
    some |= mask;
    missing |= full & ~mask;
  }
  return !wrong && some && missing;
}

// Whether the table is possible and fits the `bytes` of bits, then whether these are.
inline bool check_sign1(const DecodeRun &run, size_t bytes, bool *nonfinite) {
  uint64_t expected = 0;
  bool valid = true;
  const uint8_t *entry = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, entry += 4) {
    const uint32_t e = load_u32(entry);
    const size_t n = run.n - begin < run.block ? run.n - begin : run.block;
    *nonfinite |= e == GF_CANONICAL_NAN;
    valid &= e == GF_CANONICAL_NAN || ((e & 0x7fffffffu) < GF_INF_BITS && e != GF_SIGN1_MASKED);
    expected += sign1_parts(e) * ((n + 7) / 8);
  }
  if (!valid || expected != bytes) return false;
  const uint8_t *codes = run.codes;
  entry = run.scales;
  for (size_t begin = 0; valid && begin < run.n; begin += run.block, entry += 4) {
    const size_t n = run.n - begin < run.block ? run.n - begin : run.block;
    const size_t parts = sign1_parts(load_u32(entry));
    if (parts) valid = check_sign1_block(codes, n, parts == 2);
    codes += parts * ((n + 7) / 8);
  }
  return valid;
}

// `mask` is null where no element is zero.
inline void sign1_put(const DecodeRun &b, const uint8_t *mask, const uint8_t *signs, float scale,
                      size_t begin) {
  for (size_t i = begin; i < b.n; ++i) {
    const uint32_t sign = (uint32_t)(signs[i / 8] >> (i % 8)) & 1u;
    const bool zero = mask && !(mask[i / 8] >> (i % 8) & 1);
    put(b.out, i, zero ? 0.0f : gf_float(gf_bits(scale) | sign << 31), b.add);
  }
}

inline void decode_sign1(const DecodeRun &run) {
  DecodeRun b = run;
  for (size_t begin = 0; begin < run.n; begin += run.block, b.scales += 4) {
    b.out = run.out + begin;
    b.n = run.n - begin < run.block ? run.n - begin : run.block;
    const uint32_t entry = load_u32(b.scales);
    if (entry == GF_CANONICAL_NAN) {
      put_nan(b.out, b.n, b.add);
      continue;
    }
    const size_t parts = sign1_parts(entry), bytes = (b.n + 7) / 8;
    if (parts == 0) {
      for (size_t i = 0; i < b.n; ++i) put(b.out, i, 0.0f, b.add);
      continue;
    }
    const float scale = gf_float(entry & 0x7fffffffu);
    const uint8_t *const mask = parts == 2 ? b.codes : nullptr;
    b.codes += parts * bytes;
    sign1_put(b, mask, b.codes - bytes, scale, Simd::sign1_put(b, mask, b.codes - bytes, scale));
  }
}
