// The loops over blocks, once for all levels. Each level provides `struct Simd`, whose functions handle the
// front of a block and return how many elements they did; the scalar loops do the rest. No include guard by
// design: included inside each level's namespace, after scalar_blocks.h and the level's Simd.

// The maximum of the block that comes next is found before a block is encoded: the two do not wait for each
// other, and the next block is in the cache by then.
inline uint32_t any_block_max(const EncodeRun &b) {
  uint32_t m = 0;
  const size_t done = Simd::max_abs(b, &m);
  m = max_abs_bits(b.x, b.residual, done, b.n, m);
  return m >= GF_INF_BITS && b.residual ? max_abs_bits_saturated(b.x, b.residual, b.n) : m;
}

// Where the addition of a residual may have been held back from overflow, only the scalar loop knows how.
inline bool plain_sums(const EncodeRun &b, uint32_t m) { return !(b.residual && m == GF_MAX_BITS); }

inline EncodeRun block_of(const EncodeRun &run, int bits, size_t begin) {
  EncodeRun b = run;
  b.x += begin;
  if (b.residual) b.residual += begin;
  b.n = run.n - begin < run.block ? run.n - begin : run.block;
  b.first += begin;
  b.codes += begin * (size_t)bits / 8;
  return b;
}

inline uint32_t max_of_block(const EncodeRun &run, size_t begin) {
  return begin < run.n ? any_block_max(block_of(run, 8, begin)) : 0;
}

inline DecodeRun block_of(const DecodeRun &run, int bits, size_t begin) {
  DecodeRun b = run;
  b.codes += begin * (size_t)bits / 8;
  b.out += begin;
  b.n = run.n - begin < run.block ? run.n - begin : run.block;
  return b;
}

// Blocks that carry no codes. An all-zero block leaves nothing behind; one that is not finite keeps its
// residual.
inline void encode_empty(const EncodeRun &b, int bits, bool zero) {
  memset(b.codes, 0, code_bytes(bits, b.n));
  if (zero && b.residual) memset(b.residual, 0, b.n * sizeof(float));
}

template <int kBits>
bool encode_uniform_of(const EncodeRun &run) {
  constexpr int32_t levels = (1 << (kBits - 1)) - 1;
  bool nonfinite = false;
  uint32_t next_max = max_of_block(run, 0);
  uint8_t *scale = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, scale += 4) {
    const EncodeRun b = block_of(run, kBits, begin);
    const uint32_t m = next_max;
    next_max = max_of_block(run, begin + run.block);
    if (m == 0 || m >= GF_INF_BITS) {
      nonfinite |= m != 0;
      store_u32(scale, m ? GF_CANONICAL_NAN : 0u);
      encode_empty(b, kBits, m == 0);
      continue;
    }
    store_u32(scale, m);
    const gf_uniform_block p = gf_uniform_params(gf_float(m), levels);
    const uint64_t block_key = gf_dither_block(b.key, b.first);
    const size_t done = p.pre == 1.0f ? Simd::encode_uniform<kBits>(b, p, block_key) : 0;
    encode_uniform_range<kBits>(b, p, block_key, done, b.n);
  }
  return nonfinite;
}

template <int kBits>
void decode_uniform_of(const DecodeRun &run) {
  constexpr int32_t levels = (1 << (kBits - 1)) - 1;
  const uint8_t *scale = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, scale += 4) {
    const DecodeRun b = block_of(run, kBits, begin);
    const uint32_t m = load_u32(scale);
    if (m >= GF_INF_BITS) {
      put_nan(b.out, b.n, b.add);
    } else if (m == 0) {
      for (size_t i = 0; i < b.n; ++i) put(b.out, i, 0.0f, b.add);
    } else {
      const gf_uniform_block p = gf_uniform_params(gf_float(m), levels);
      const size_t done = p.pre == 1.0f ? Simd::decode_uniform<kBits>(b, p) : 0;
      decode_uniform_range<kBits>(b, p, done, b.n);
    }
  }
}

inline bool encode_uniform(int bits, const EncodeRun &run) {
  if (bits == 8) return encode_uniform_of<8>(run);
  if (bits == 4) return encode_uniform_of<4>(run);
  return encode_uniform_of<2>(run);
}

inline void decode_uniform(int bits, const DecodeRun &run) {
  if (bits == 8) return decode_uniform_of<8>(run);
  if (bits == 4) return decode_uniform_of<4>(run);
  return decode_uniform_of<2>(run);
}

inline bool encode_log4(const EncodeRun &run) {
  bool nonfinite = false;
  uint32_t next_max = max_of_block(run, 0);
  uint8_t *scale = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, ++scale) {
    const EncodeRun b = block_of(run, 4, begin);
    const uint32_t m = next_max;
    next_max = max_of_block(run, begin + run.block);
    if (m == 0 || m >= GF_INF_BITS) {
      nonfinite |= m != 0;
      *scale = m ? GF_LOG4_NONFINITE : 0u;
      encode_empty(b, 4, m == 0);
      continue;
    }
    const uint32_t e = gf_log4_exponent(m, b.stochastic);
    *scale = (uint8_t)e;
    const uint64_t block_key = gf_dither_block(b.key, b.first);
    const size_t done = plain_sums(b, m) ? Simd::encode_log4(b, e, block_key) : 0;
    encode_log4_range(b, e, block_key, done, b.n);
  }
  return nonfinite;
}

inline void decode_log4(const DecodeRun &run) {
  const uint8_t *scale = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, ++scale) {
    const DecodeRun b = block_of(run, 4, begin);
    if (*scale == GF_LOG4_NONFINITE) {
      put_nan(b.out, b.n, b.add);
    } else if (*scale == 0) {
      for (size_t i = 0; i < b.n; ++i) put(b.out, i, 0.0f, b.add);
    } else {
      decode_log4_range(b, *scale, Simd::decode_log4(b, *scale), b.n);
    }
  }
}

inline bool encode_fp16(const EncodeRun &run) {
  bool nonfinite = false;
  uint32_t next_max = max_of_block(run, 0);
  uint8_t *scale = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, ++scale) {
    const EncodeRun b = block_of(run, 16, begin);
    const uint32_t m = next_max;
    next_max = max_of_block(run, begin + run.block);
    if (m == 0 || m >= GF_INF_BITS) {
      nonfinite |= m != 0;
      *scale = m ? GF_HALF_NONFINITE : 0u;
      encode_empty(b, 16, m == 0);
      continue;
    }
    const uint32_t e = gf_half_exponent(m);
    *scale = (uint8_t)e;
    const size_t done = plain_sums(b, m) && e < 254u ? Simd::encode_fp16(b, e) : 0;
    encode_fp16_range(b, e, done, b.n);
  }
  return nonfinite;
}

inline void decode_fp16(const DecodeRun &run) {
  const uint8_t *scale = run.scales;
  for (size_t begin = 0; begin < run.n; begin += run.block, ++scale) {
    const DecodeRun b = block_of(run, 16, begin);
    if (*scale == GF_HALF_NONFINITE) {
      put_nan(b.out, b.n, b.add);
    } else if (*scale == 0) {
      for (size_t i = 0; i < b.n; ++i) put(b.out, i, 0.0f, b.add);
    } else {
      decode_fp16_range(b, *scale, Simd::decode_fp16(b, *scale), b.n);
    }
  }
}

inline bool encode_bf16(const EncodeRun &run) {
  uint32_t m = 0;
  const size_t done = Simd::encode_bf16(run, &m);
  return encode_bf16_range(run, done, run.n, m) >= GF_INF_BITS;
}

inline void decode_bf16(const DecodeRun &run) { decode_bf16_range(run, Simd::decode_bf16(run), run.n); }

inline bool encode_none(const EncodeRun &run) {
  uint32_t m = 0;
  const size_t done = Simd::encode_none(run, &m);
  return encode_none_range(run, done, run.n, m) >= GF_INF_BITS;
}

inline void decode_none(const DecodeRun &run) {
  if (run.add) {
    for (size_t i = 0; i < run.n; ++i) run.out[i] = gf_add(run.out[i], gf_float(load_u32(run.codes + 4 * i)));
  } else if (run.n) {
    memcpy(run.out, run.codes, 4 * run.n);
  }
}
