// Loops over plain arrays: conversions, sums, energy. No include guard by design: included inside each
// level's namespace. The vector types are GCC's, lowered to whatever the level has.

typedef float Float8 __attribute__((vector_size(32)));
typedef int32_t Int8 __attribute__((vector_size(32)));
typedef float Float4 __attribute__((vector_size(16)));
typedef double Double4 __attribute__((vector_size(32)));

inline bool load_f32(const void *src, int dtype, float *dst, size_t n) {
  uint32_t m = 0;
  switch (dtype) {
    case GF_F32: {
      const float *s = static_cast<const float *>(src);
      for (size_t i = 0; !dst && i < n; ++i) {
        const uint32_t a = gf_abs_bits(s[i]);
        m = a > m ? a : m;
      }
      for (size_t i = 0; dst && i < n; ++i) {
        const uint32_t a = gf_abs_bits(s[i]);
        m = a > m ? a : m;
        dst[i] = s[i];
      }
      break;
    }
    case GF_F64: {
      const double *s = static_cast<const double *>(src);
      for (size_t i = 0; i < n; ++i) {
        dst[i] = (float)s[i];
        const uint32_t a = gf_abs_bits(dst[i]);
        m = a > m ? a : m;
      }
      break;
    }
    case GF_F16: {
      const uint8_t *s = static_cast<const uint8_t *>(src);
      for (size_t i = Simd::load_half(s, dst, n, &m); i < n; ++i) {
        dst[i] = gf_float_from_half(load_u16(s, i));
        const uint32_t a = gf_abs_bits(dst[i]);
        m = a > m ? a : m;
      }
      break;
    }
    case GF_BF16: {
      const uint16_t *s = static_cast<const uint16_t *>(src);
      for (size_t i = 0; i < n; ++i) {
        dst[i] = gf_float_from_bf16(s[i]);
        const uint32_t a = gf_abs_bits(dst[i]);
        m = a > m ? a : m;
      }
      break;
    }
  }
  return m < GF_INF_BITS;
}

inline void store_f32(const float *src, float scale, void *dst, int dtype, size_t n) {
  switch (dtype) {
    case GF_F32: {
      float *d = static_cast<float *>(dst);
      for (size_t i = 0; i < n; ++i) d[i] = gf_mul(src[i], scale);
      break;
    }
    case GF_F64: {
      double *d = static_cast<double *>(dst);
      for (size_t i = 0; i < n; ++i) d[i] = gf_mul(src[i], scale);
      break;
    }
    case GF_F16: {
      uint8_t *d = static_cast<uint8_t *>(dst);
      for (size_t i = Simd::store_half(src, scale, d, n); i < n; ++i)
        store_u16(d, i, gf_half_from_float(gf_mul(src[i], scale)));
      break;
    }
    case GF_BF16: {
      uint16_t *d = static_cast<uint16_t *>(dst);
      for (size_t i = 0; i < n; ++i) d[i] = gf_bf16_from_float(gf_mul(src[i], scale));
      break;
    }
  }
}

// One vector at a time: a longer memcpy goes by smaller pieces, which then stall the vector load.
template <typename T, typename V>
inline void load_vector(const T *p, V *v) {
  memcpy(v, p, sizeof *v);
}

template <typename T, typename V>
inline void store_vector(T *p, const V &v) {
  memcpy(p, &v, sizeof v);
}

template <typename T, typename V>
inline void load_four(const T *p, V *a, V *b, V *c, V *d) {
  constexpr size_t lanes = sizeof(V) / sizeof(T);
  load_vector(p, a);
  load_vector(p + lanes, b);
  load_vector(p + 2 * lanes, c);
  load_vector(p + 3 * lanes, d);
}

// Reads all sources of a position before it writes there, so dst may be one of them.
template <typename T, typename V>
inline void sum_of(T *dst, const T *const *srcs, int count, T scale, size_t n) {
  constexpr size_t lanes = sizeof(V) / sizeof(T);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    V a, b, c, d;
    load_four(srcs[0] + i, &a, &b, &c, &d);
    for (int s = 1; s < count; ++s) {
      V e, f, g, h;
      load_four(srcs[s] + i, &e, &f, &g, &h);
      a += e;
      b += f;
      c += g;
      d += h;
    }
    store_vector(dst + i, a * scale);
    store_vector(dst + i + lanes, b * scale);
    store_vector(dst + i + 2 * lanes, c * scale);
    store_vector(dst + i + 3 * lanes, d * scale);
  }
  for (; i < n; ++i) {
    T acc = srcs[0][i];
    for (int s = 1; s < count; ++s) acc += srcs[s][i];
    dst[i] = acc * scale;
  }
}

inline void sum_f32(float *dst, const float *const *srcs, int count, float scale, size_t n) {
  sum_of<float, Float8>(dst, srcs, count, scale, n);
}

inline void sum_f64(double *dst, const double *const *srcs, int count, double scale, size_t n) {
  sum_of<double, Double4>(dst, srcs, count, scale, n);
}

// Of eight elements: those of the first four to `low`, those of the others to `high`.
inline void add_squares(const float *x, Double4 *low, Double4 *high) {
  Int8 bits;
  load_vector(x, &bits);
  bits &= (bits & 0x7f800000) != 0x7f800000;  // what is not finite becomes zero
  Float4 halves[2];
  memcpy(halves, &bits, sizeof halves);
  const Double4 a = __builtin_convertvector(halves[0], Double4);
  const Double4 b = __builtin_convertvector(halves[1], Double4);
  *low += a * a;
  *high += b * b;
}

// Of GF_ENERGY_CHUNK elements at most: eight lanes, lane j adding the squares of elements j, j + 8, ... in
// double, where they are exact; then ((0+4) + (1+5)) + ((2+6) + (3+7)). A chunk is a page, at whose end the
// processor's own prefetching stops: the next one is asked for here (1.5 times as fast).
inline double energy_of_chunk(const float *x, size_t n) {
  Double4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __builtin_prefetch(x + i + GF_ENERGY_CHUNK);
    add_squares(x + i, &low, &high);
    add_squares(x + i + 8, &low, &high);
  }
  for (; i < n; i += 8) {
    float rest[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    memcpy(rest, x + i, (n - i < 8 ? n - i : 8) * sizeof(float));
    add_squares(rest, &low, &high);
  }
  const Double4 s = low + high;
  return (s[0] + s[1]) + (s[2] + s[3]);
}

// 32 lanes, lane j adding chunks j, j + 32, ...; then halves of lanes are added to each other until one is
// left. An order that a GPU can follow.
inline double energy(const float *x, size_t n) {
  double lanes[GF_ENERGY_LANES] = {};
  for (size_t i = 0; i < n; i += GF_ENERGY_CHUNK)
    lanes[i / GF_ENERGY_CHUNK % GF_ENERGY_LANES] +=
        energy_of_chunk(x + i, n - i < GF_ENERGY_CHUNK ? n - i : GF_ENERGY_CHUNK);
  for (size_t half = GF_ENERGY_LANES / 2; half; half /= 2)
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}
