// Elements in and out of the device's memory: 16 bytes at a time where addresses allow, smaller pieces
// elsewhere.
#ifndef GF_GPU_MEMORY_CUH
#define GF_GPU_MEMORY_CUH

#include "../cython_ext/gf_api.h"
#include "gpu_runtime.h"

namespace gradflow_gpu {

constexpr unsigned kEach = 8;  // consecutive elements of a thread

struct alignas(16) Bytes16 {
  uint32_t w[4];
};

GPU_FN bool aligned(const void *p, size_t to) { return ((uintptr_t)p & (to - 1)) == 0; }

GPU_FN uint32_t load_u16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }

GPU_FN uint32_t load_u32(const uint8_t *p) {
  if (aligned(p, 4)) return *(const uint32_t *)p;
  return load_u16(p) | load_u16(p + 2) << 16;
}

GPU_FN void store_u32(uint8_t *p, uint32_t v) {
  if (aligned(p, 4)) {
    *(uint32_t *)p = v;
    return;
  }
  for (unsigned i = 0; i < 4; ++i) p[i] = (uint8_t)(v >> 8 * i);
}

// One element, as float32.
GPU_FN float load_element(const void *p, int dtype, size_t i) {
  if (dtype == GF_F16) return gf_float_from_half(((const uint16_t *)p)[i]);
  if (dtype == GF_BF16) return gf_float_from_bf16(((const uint16_t *)p)[i]);
  return ((const float *)p)[i];
}

GPU_FN void store_element(void *p, int dtype, size_t i, float v) {
  if (dtype == GF_F16) {
    ((uint16_t *)p)[i] = gf_half_from_float(v);
  } else if (dtype == GF_BF16) {
    ((uint16_t *)p)[i] = gf_bf16_from_float(v);
  } else {
    ((float *)p)[i] = v;
  }
}

// The kEach elements from i on, i a multiple of kEach; what lies beyond n counts as zero.
GPU_FN void load_floats(const float *p, size_t i, size_t n, float *v) {
  if (i + kEach <= n && aligned(p, 16)) {
    const Bytes16 a = *(const Bytes16 *)(p + i), b = *(const Bytes16 *)(p + i + 4);
    for (unsigned k = 0; k < 4; ++k) {
      v[k] = gf_float(a.w[k]);
      v[4 + k] = gf_float(b.w[k]);
    }
    return;
  }
  for (unsigned k = 0; k < kEach; ++k) v[k] = i + k < n ? p[i + k] : 0.0f;
}

GPU_FN void load_elements(const void *p, int dtype, size_t i, size_t n, float *v) {
  if (dtype == GF_F32) return load_floats((const float *)p, i, n, v);
  const uint16_t *const h = (const uint16_t *)p;
  if (i + kEach <= n && aligned(p, 16)) {
    const Bytes16 a = *(const Bytes16 *)(h + i);
    for (unsigned k = 0; k < kEach; ++k) {
      const uint16_t one = (uint16_t)(a.w[k / 2] >> 16 * (k % 2));
      v[k] = dtype == GF_F16 ? gf_float_from_half(one) : gf_float_from_bf16(one);
    }
    return;
  }
  for (unsigned k = 0; k < kEach; ++k) v[k] = i + k < n ? load_element(p, dtype, i + k) : 0.0f;
}

GPU_FN void store_floats(float *p, size_t i, size_t n, const float *v) {
  if (i + kEach <= n && aligned(p, 16)) {
    Bytes16 a, b;
    for (unsigned k = 0; k < 4; ++k) {
      a.w[k] = gf_bits(v[k]);
      b.w[k] = gf_bits(v[4 + k]);
    }
    *(Bytes16 *)(p + i) = a;
    *(Bytes16 *)(p + i + 4) = b;
    return;
  }
  for (unsigned k = 0; k < kEach; ++k)
    if (i + k < n) p[i + k] = v[k];
}

// kBytes (at most 32) of packed codes; only the first `used` of them are in the payload. Loops are unrolled
// so that words stay in registers.
template <unsigned kBytes>
GPU_FN void store_codes(uint8_t *p, const uint32_t *words, unsigned used) {
  if constexpr (kBytes % 16 == 0) {
    if (used == kBytes && aligned(p, 16)) {
#pragma unroll
      for (unsigned k = 0; k < kBytes / 16; ++k) {
        Bytes16 b;
        for (unsigned w = 0; w < 4; ++w) b.w[w] = words[4 * k + w];
        ((Bytes16 *)p)[k] = b;
      }
      return;
    }
  } else if constexpr (kBytes == 8) {
    if (used == kBytes && aligned(p, 8)) {
      *(uint64_t *)p = words[0] | (uint64_t)words[1] << 32;
      return;
    }
  } else if constexpr (kBytes == 2) {
    if (used == kBytes && aligned(p, 2)) {
      *(uint16_t *)p = (uint16_t)words[0];
      return;
    }
  }
  if constexpr (kBytes % 4 == 0) {
    if (used == kBytes && aligned(p, 4)) {
#pragma unroll
      for (unsigned w = 0; w < kBytes / 4; ++w) ((uint32_t *)p)[w] = words[w];
      return;
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kBytes; ++i)
    if (i < used) p[i] = (uint8_t)(words[i / 4] >> 8 * (i % 4));
}

template <unsigned kBytes>
GPU_FN void load_codes(const uint8_t *p, uint32_t *words, unsigned used) {
  if constexpr (kBytes % 16 == 0) {
    if (used == kBytes && aligned(p, 16)) {
#pragma unroll
      for (unsigned k = 0; k < kBytes / 16; ++k) {
        const Bytes16 b = ((const Bytes16 *)p)[k];
        for (unsigned w = 0; w < 4; ++w) words[4 * k + w] = b.w[w];
      }
      return;
    }
  }
  if constexpr (kBytes % 4 == 0) {
    if (used == kBytes && aligned(p, 4)) {
#pragma unroll
      for (unsigned w = 0; w < kBytes / 4; ++w) words[w] = ((const uint32_t *)p)[w];
      return;
    }
  }
#pragma unroll
  for (unsigned w = 0; w < (kBytes + 3) / 4; ++w) words[w] = 0;
#pragma unroll
  for (unsigned i = 0; i < kBytes; ++i)
    if (i < used) words[i / 4] |= (uint32_t)p[i] << 8 * (i % 4);
}

// a + b and a * b with the NaN that an x86 processor gives: the first operand's, else the second's, made
// quiet; a new one is negative. GPUs have one NaN of their own, and results must not tell who computed them.
GPU_FN float host_nan(float a, float b) {
  if (gf_abs_bits(a) > GF_INF_BITS) return gf_float(gf_bits(a) | 0x400000u);
  if (gf_abs_bits(b) > GF_INF_BITS) return gf_float(gf_bits(b) | 0x400000u);
  return gf_float(0xffc00000u);
}

GPU_FN float host_add(float a, float b) {
  const float v = gf_add(a, b);
  return gf_abs_bits(v) > GF_INF_BITS ? host_nan(a, b) : v;
}

GPU_FN float host_mul(float a, float b) {
  const float v = gf_mul(a, b);
  return gf_abs_bits(v) > GF_INF_BITS ? host_nan(a, b) : v;
}

}  // namespace gradflow_gpu

#endif
