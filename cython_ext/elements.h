// What happens to one value, or to one block's parameters, when a gradient is encoded and decoded.
// The C++, the CUDA and the HIP compiler take this header, so every backend makes the same bytes: only
// IEEE-exact operations (add, subtract, multiply, divide, integers), each rounded once. Compile with
// -ffp-contract=off (C++) or --fmad=false (CUDA); denormals must not be flushed.
// docs/wire-format.md states the same formulas in words.
#ifndef GF_ELEMENTS_H
#define GF_ELEMENTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define GF_HD __host__ __device__
#else
#define GF_HD
#endif

// To the HIP compiler memcpy is a function of the host.
#ifdef __HIPCC__
#define GF_COPY __builtin_memcpy
#else
#define GF_COPY memcpy
#endif

// "static": each file that includes this is compiled for its own instruction level and must keep its
// own copy; a shared inline function could be linked from a level that the machine lacks.
#define GF_FN static inline GF_HD

#define GF_CANONICAL_NAN 0x7fc00000u
#define GF_INF_BITS 0x7f800000u
#define GF_MAX_BITS 0x7f7fffffu  // largest finite float

GF_FN uint32_t gf_bits(float v) {
  uint32_t u;
  GF_COPY(&u, &v, sizeof u);
  return u;
}

GF_FN float gf_float(uint32_t u) {
  float v;
  GF_COPY(&v, &u, sizeof v);
  return v;
}

GF_FN uint32_t gf_abs_bits(float v) { return gf_bits(v) & 0x7fffffffu; }

#ifdef __CUDA_ARCH__
GF_FN float gf_add(float a, float b) { return __fadd_rn(a, b); }
GF_FN float gf_sub(float a, float b) { return __fsub_rn(a, b); }
GF_FN float gf_mul(float a, float b) { return __fmul_rn(a, b); }
GF_FN float gf_div(float a, float b) { return __fdiv_rn(a, b); }
#else
GF_FN float gf_add(float a, float b) { return a + b; }
GF_FN float gf_sub(float a, float b) { return a - b; }
GF_FN float gf_mul(float a, float b) { return a * b; }
GF_FN float gf_div(float a, float b) { return a / b; }
#endif

// x + residual; two finite numbers never add up to infinity.
GF_FN float gf_add_residual(float x, float r) {
  float v = gf_add(x, r);
  if (gf_abs_bits(v) == GF_INF_BITS && gf_abs_bits(x) < GF_INF_BITS && gf_abs_bits(r) < GF_INF_BITS)
    v = gf_float((gf_bits(v) & 0x80000000u) | GF_MAX_BITS);
  return v;
}

// Sums of squares are added in chunks, in an order that vectors, threads and NumPy can all follow.
#define GF_ENERGY_CHUNK 1024u
#define GF_ENERGY_LANES 32u

// ---- Dither -------------------------------------------------------------------------------------
// Counter based: a draw is a function of (key, global index) alone, so it can be made in any order.

#define GF_GOLDEN64 0x9e3779b97f4a7c15ull
#define GF_WEYL 0x9e3779b1u    // prime next to 2^32 / golden ratio
#define GF_HASH_1 0x7feb352du  // multipliers of C. Wellons' "lowbias32"
#define GF_HASH_2 0x846ca68bu

// Finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
GF_FN uint64_t gf_mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

GF_FN uint64_t gf_dither_key(uint64_t seed, uint64_t rank, uint64_t name_hash, uint64_t sequence,
                             uint64_t stage) {
  uint64_t z = gf_mix64(seed + GF_GOLDEN64);
  z = gf_mix64((z ^ rank) + GF_GOLDEN64);
  z = gf_mix64((z ^ name_hash) + GF_GOLDEN64);
  z = gf_mix64((z ^ sequence) + GF_GOLDEN64);
  return gf_mix64((z ^ stage) + GF_GOLDEN64);
}

// The 64-bit key of one block: its low half shifts the counter, its high half enters between the
// multiplications. Blocks are powers of two, so the index's high half is the same for all of a block.
GF_FN uint64_t gf_dither_block(uint64_t key, uint64_t index) {
  return gf_mix64(key + (index >> 32) * GF_GOLDEN64);
}

// 32 bits of which the upper ones are good; consumers take the upper 16 or 23.
GF_FN uint32_t gf_dither(uint64_t block_key, uint32_t index) {
  uint32_t t = (uint32_t)block_key + index * GF_WEYL;
  t ^= t >> 16;
  t ^= (uint32_t)(block_key >> 32);
  t *= GF_HASH_1;
  t ^= t >> 15;
  return t * GF_HASH_2;
}

// An odd multiple of 2^-17 in (-1/2, 1/2), symmetric: added before rounding it makes the result
// unbiased (to 2^-17 steps) and leaves integers up to 127 exactly as they are.
GF_FN float gf_dither_offset(uint32_t h) { return gf_mul((float)(((int32_t)h >> 15) | 1), 1.0f / 131072.0f); }

// ---- Uniform symmetric quantizer ----------------------------------------------------------------

struct gf_uniform_block {
  float pre;   // power of two that brings the block's maximum to a range where 1/maximum is normal
  float inv;   // codes per scaled unit
  float step;  // scaled units per code
  float post;  // 1 / pre
  int32_t q;   // largest code
};

// `scale`: the block's largest magnitude, finite and not zero. levels: 127, 7 or 1.
GF_FN struct gf_uniform_block gf_uniform_params(float scale, int32_t levels) {
  struct gf_uniform_block p;
  p.pre = 1.0f;
  p.post = 1.0f;
  if (scale < 8.67361737988403547206e-19f) {  // 2^-60
    p.pre = 18446744073709551616.0f;          // 2^64
    p.post = 5.42101086242752217004e-20f;     // 2^-64
  } else if (scale > 1152921504606846976.0f) {
    p.pre = 5.42101086242752217004e-20f;
    p.post = 18446744073709551616.0f;
  }
  const float scaled = gf_mul(scale, p.pre);
  p.inv = gf_div((float)levels, scaled);
  p.step = gf_div(scaled, (float)levels);
  // Near the top of float32's range a step that was rounded up would decode the largest code to infinity.
  if (p.post > 1.0f && gf_mul((float)levels, p.step) > scaled) p.step = gf_float(gf_bits(p.step) - 1u);
  p.q = levels;
  return p;
}

// Round half to even for |v| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
GF_FN int32_t gf_rint(float v) { return (int32_t)(gf_bits(gf_add(v, 12582912.0f)) - 0x4b400000u); }

GF_FN int32_t gf_uniform_code(float v, float offset, const struct gf_uniform_block p) {
  const int32_t c = gf_rint(gf_add(gf_mul(gf_mul(v, p.pre), p.inv), offset));
  return c > p.q ? p.q : (c < -p.q ? -p.q : c);
}

GF_FN float gf_uniform_value(int32_t code, const struct gf_uniform_block p) {
  return gf_mul(gf_mul((float)code, p.step), p.post);
}

// ---- log4: sign and three bits of exponent --------------------------------------------------------

#define GF_LOG4_MIN_EXPONENT 7u  // biased; the lowest of the seven levels is then 2^-126, a normal float
#define GF_LOG4_NONFINITE 255u

// The exponent byte of a block with this largest magnitude (finite): that of the maximum, rounded to a
// power of two; upwards if the rounding is stochastic, so that nothing is clamped.
GF_FN uint32_t gf_log4_exponent(uint32_t max_bits, int stochastic) {
  if (max_bits == 0) return 0;
  const uint32_t e = (max_bits + (stochastic ? 0x7fffffu : 0x400000u)) >> 23;
  return e < GF_LOG4_MIN_EXPONENT ? GF_LOG4_MIN_EXPONENT : (e > 254u ? 254u : e);
}

// Level of a magnitude, 0 to 7. Between powers of two the middle (1.5 * 2^k) goes up; half of the lowest
// level and above is not zero.
GF_FN uint32_t gf_log4_nearest(uint32_t abs_bits, uint32_t e) {
  const uint32_t half_lowest = e > 7u ? (e - 7u) << 23 : 0x400000u;
  const int32_t m = (int32_t)((abs_bits + 0x400000u) >> 23) - (int32_t)e + 7;
  if (abs_bits < half_lowest) return 0;
  return m < 1 ? 1u : (m > 7 ? 7u : (uint32_t)m);
}

// The mantissa's fraction is the probability of the next power of two: a random 23-bit number is added and
// the carry decides. Below the lowest level, that level is added first, which makes the fraction v / lowest.
GF_FN uint32_t gf_log4_stochastic(uint32_t abs_bits, uint32_t e, uint32_t h) {
  const uint32_t lowest = (e - 6u) << 23;
  const uint32_t below = abs_bits < lowest ? 1u : 0u;
  const uint32_t from = below ? gf_bits(gf_add(gf_float(abs_bits), gf_float(lowest))) : abs_bits;
  const uint32_t m = ((from + (h >> 9)) >> 23) - (e - 7u) - below;
  return m > 7u ? 7u : m;
}

GF_FN uint32_t gf_log4_code(uint32_t level, float v) {
  return level ? level | ((gf_bits(v) >> 28) & 8u) : 0u;
}

GF_FN float gf_log4_value(uint32_t code, uint32_t e) {
  const uint32_t m = code & 7u;
  return gf_float((m ? (e - 7u + m) << 23 : 0u) | ((code & 8u) << 28));
}

// ---- 16-bit floats --------------------------------------------------------------------------------

// Nearest even, IEEE binary16; overflow gives infinity, NaN the canonical one.
GF_FN uint16_t gf_half_from_float(float v) {
  const uint32_t u = gf_bits(v), a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  if (a > GF_INF_BITS) return 0x7e00u;
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);  // 65520 and above
  if (a < 0x38800000u) {  // below 2^-14: 2^-24 is one unit, which adding 1/2 puts into the last bit
    return (uint16_t)(sign | (gf_bits(gf_add(gf_float(a), 0.5f)) - 0x3f000000u));
  }
  return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

GF_FN float gf_float_from_half(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
  if (a > 0x7c00u) return gf_float(GF_CANONICAL_NAN);
  if (a == 0x7c00u) return gf_float(sign | GF_INF_BITS);
  if (a < 0x400u) return gf_float(sign | gf_bits(gf_mul((float)a, 5.9604644775390625e-8f)));  // 2^-24
  return gf_float(sign | ((a << 13) + 0x38000000u));
}

// Nearest even; overflow gives infinity, NaN the canonical one.
GF_FN uint16_t gf_bf16_from_float(float v) {
  const uint32_t u = gf_bits(v);
  if ((u & 0x7fffffffu) > GF_INF_BITS) return 0x7fc0u;
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// The same, but a finite number stays finite.
GF_FN uint16_t gf_bf16_saturated(float v) {
  const uint16_t b = gf_bf16_from_float(v);
  return (b & 0x7fffu) == 0x7f80u && gf_abs_bits(v) < GF_INF_BITS ? (uint16_t)(b - 1u) : b;
}

GF_FN float gf_float_from_bf16(uint16_t b) { return gf_float((uint32_t)b << 16); }

// fp16 with a block exponent: e is the (biased) exponent of the block's maximum; the block is scaled so that
// its maximum lies in [2^14, 2^15). 15 as the lower bound keeps the scale, 2^(141-e), a normal float.
#define GF_HALF_MIN_EXPONENT 15u
#define GF_HALF_NONFINITE 255u

GF_FN uint32_t gf_half_exponent(uint32_t max_bits) {
  if (max_bits == 0) return 0;
  const uint32_t e = max_bits >> 23;
  return e < GF_HALF_MIN_EXPONENT ? GF_HALF_MIN_EXPONENT : e;
}

GF_FN float gf_half_scale(uint32_t e) { return gf_float((268u - e) << 23); }   // 2^(141-e)
GF_FN float gf_half_unscale(uint32_t e) { return gf_float((e - 14u) << 23); }  // 2^(e-141)

// Only in the topmost binade could rounding up to 2^15 decode to infinity.
GF_FN uint16_t gf_half_code(float v, uint32_t e) {
  const uint16_t h = gf_half_from_float(gf_mul(v, gf_half_scale(e)));
  return e == 254u && (h & 0x7fffu) == 0x7800u ? (uint16_t)(h - 1u) : h;
}

// ---- sign1: signs, and the mean magnitude of a block -------------------------------------------------

#define GF_SIGN1_MASKED 0x80000000u  // in a block's scale: a mask tells which elements are zero
#define GF_SIGN1_LANES 32u           // magnitudes are added in so many lanes, element i in lane i mod 32

// The mean of `count` magnitudes with this sum, which lies between the least and the largest of them: never
// zero, never infinite.
GF_FN float gf_sign1_scale(double sum, uint32_t count) { return (float)(sum / (double)count); }

// What is sent for v, which is not zero.
GF_FN float gf_sign1_value(float v, float scale) {
  return gf_float(gf_bits(scale) | (gf_bits(v) & 0x80000000u));
}

// ---- topk, and the code of ascending indices -----------------------------------------------------------

#define GF_TOPK_FRONT_BYTES 8u               // of a body: the number of elements that follow
#define GF_TOPK_ELEMENTS_PER_BYTE 0x100000u  // of a body, at most

// The parameter of the Rice code of k indices below n: the largest b with 2^b <= n/k - 1/2, 0 if there is
// none.
GF_FN uint32_t gf_rice_parameter(uint64_t n, uint64_t k) {
  uint32_t b = 0;
  if (k)
    for (uint64_t gap = (2 * n - k) / (2 * k); gap > 1; gap /= 2) ++b;
  return b;
}

// ---- deadzone: one step for a tensor, blocks of 32 -----------------------------------------------------

#define GF_DZ_BLOCK 32u
#define GF_DZ_MAX_SHIFT 100u  // a block's step is at most 2^100 times the tensor's
#define GF_DZ_CODE_BITS 12u   // a gradient's codes: at most 2^12, so that the sum of 2^10 of them
#define GF_DZ_SUM_BITS 22u    // fits a code of a sum; float32 holds such integers exactly

// How one block is quantized. `shift` is 0 but for blocks whose codes would be too large.
struct gf_dz_block {
  float step;    // of this block: the tensor's step times 2^shift
  float pre;     // power of two that brings the step to a range where its reciprocal is a normal float
  float inv;     // 1 / (step * pre)
  float offset;  // added before rounding down; 0.5 would be rounding to nearest
};

// The step that is `multiple` times the root mean square of n elements with this sum of squares.
GF_FN float gf_dz_step(double multiple, double energy, double n) {
  const double step = multiple * sqrt(energy / n);
  // Sums of squares of the largest floats are finite in double, but the step need not be in float.
  return step < 3.0e38 ? (float)step : 3.0e38f;
}

// 2^e for e from -126 to 127.
GF_FN float gf_power_of_two(int32_t e) { return gf_float((uint32_t)(e + 127) << 23); }

// Exponent of the leading bit of a positive, finite number, denormals included.
GF_FN int32_t gf_exponent(uint32_t bits) {
  if (bits >> 23) return (int32_t)(bits >> 23) - 127;
  int32_t e = -150;
  while (bits) {
    ++e;
    bits >>= 1;
  }
  return e;
}

// The smallest shift with which no code of the block exceeds 2^code_bits.
GF_FN uint32_t gf_dz_shift(uint32_t max_bits, float step, uint32_t code_bits) {
  const int32_t over = gf_exponent(max_bits) - gf_exponent(gf_bits(step)) + 1 - (int32_t)code_bits;
  return over < 0 ? 0u : (over > (int32_t)GF_DZ_MAX_SHIFT ? GF_DZ_MAX_SHIFT : (uint32_t)over);
}

// `step` positive and finite; step * 2^shift must be finite.
GF_FN struct gf_dz_block gf_dz_params(float step, uint32_t shift, float offset) {
  struct gf_dz_block b;
  b.step = gf_mul(step, gf_power_of_two((int32_t)shift));
  b.pre = 1.0f;
  if (b.step < 8.67361737988403547206e-19f) {  // 2^-60
    b.pre = 18446744073709551616.0f;           // 2^64
  } else if (b.step > 1152921504606846976.0f) {
    b.pre = 5.42101086242752217004e-20f;  // 2^-64
  }
  b.inv = gf_div(1.0f, gf_mul(b.step, b.pre));
  b.offset = offset;
  return b;
}

// floor(|v| / step + offset); what exceeds `most` (only under the largest shift) is cut off.
GF_FN uint32_t gf_dz_code(float v, const struct gf_dz_block b, uint32_t most) {
  const float a = gf_float(gf_abs_bits(v));
  const float t = gf_add(gf_mul(gf_mul(a, b.pre), b.inv), b.offset);
  return t < (float)most ? (uint32_t)t : most;
}

// A finite input never decodes to infinity: what would is the largest finite number.
GF_FN float gf_dz_value(uint32_t code, uint32_t negative, float step) {
  const float v = gf_mul((float)code, step);
  const uint32_t a = gf_bits(v);
  return gf_float((a > GF_MAX_BITS ? GF_MAX_BITS : a) | (negative ? 0x80000000u : 0u));
}

#endif
