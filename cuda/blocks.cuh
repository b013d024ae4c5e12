// One thread's eight elements under each of the codecs with a fixed layout: the element functions of
// cython_ext/elements.h, and where codes lie in words.
#ifndef GF_GPU_BLOCKS_CUH
#define GF_GPU_BLOCKS_CUH

#include "../cython_ext/kernels/layout.h"
#include "memory.cuh"

namespace gradflow_gpu {

using gradflow::CodecId;

constexpr unsigned kThreads = 256;
constexpr unsigned kTile = kThreads * kEach;  // elements of a block of threads

template <int kCodec>
struct Codec {
  static constexpr bool kUniform =
      kCodec == gradflow::kInt8 || kCodec == gradflow::kInt4 || kCodec == gradflow::kInt2;
  static constexpr bool kBlocks = kUniform || kCodec == gradflow::kFp16 || kCodec == gradflow::kLog4;
  static constexpr unsigned kBits = kCodec == gradflow::kNone                                ? 32
                                    : kCodec == gradflow::kFp16 || kCodec == gradflow::kBf16 ? 16
                                    : kCodec == gradflow::kInt8                              ? 8
                                    : kCodec == gradflow::kInt2                              ? 2
                                                                                             : 4;
  static constexpr int32_t kLevels = kUniform ? (1 << (kBits - 1)) - 1 : 0;
  static constexpr unsigned kBytes = kEach * kBits / 8;  // of a thread's codes
  static constexpr unsigned kWords = (kBytes + 3) / 4;
  static constexpr unsigned kScaleBytes = kUniform ? 4 : (kBlocks ? 1 : 0);
};

// What a block's scale says about its elements: of one that has codes.
template <int kCodec>
struct Block {
  gf_uniform_block uniform;
  uint32_t exponent;

  // `m`: the block's largest magnitude, as bits.
  GF_HD static Block of_maximum(uint32_t m, int stochastic) {
    Block b = {};
    if (Codec<kCodec>::kUniform) b.uniform = gf_uniform_params(gf_float(m), Codec<kCodec>::kLevels);
    if (kCodec == gradflow::kLog4) b.exponent = gf_log4_exponent(m, stochastic);
    if (kCodec == gradflow::kFp16) b.exponent = gf_half_exponent(m);
    return b;
  }
  // The entry in front of the codes.
  GF_HD uint32_t scale(uint32_t m) const { return Codec<kCodec>::kUniform ? m : exponent; }
  GF_HD static Block of_scale(uint32_t scale) {
    Block b = {};
    if (Codec<kCodec>::kUniform) b.uniform = gf_uniform_params(gf_float(scale), Codec<kCodec>::kLevels);
    b.exponent = scale;
    return b;
  }
  GF_HD static bool scale_nonfinite(uint32_t scale) {
    return Codec<kCodec>::kUniform ? scale >= GF_INF_BITS : scale == GF_HALF_NONFINITE;
  }

  GF_HD uint32_t code(float v, uint32_t random, int stochastic) const {
    if (Codec<kCodec>::kUniform)
      return (uint32_t)gf_uniform_code(v, stochastic ? gf_dither_offset(random) : 0.0f, uniform);
    if (kCodec == gradflow::kLog4) {
      const uint32_t a = gf_abs_bits(v);
      return gf_log4_code(stochastic ? gf_log4_stochastic(a, exponent, random) : gf_log4_nearest(a, exponent),
                          v);
    }
    if (kCodec == gradflow::kFp16) return gf_half_code(v, exponent);
    if (kCodec == gradflow::kBf16) return gf_bf16_saturated(v);
    return gf_abs_bits(v) > GF_INF_BITS ? GF_CANONICAL_NAN : gf_bits(v);
  }
  // Of a code as it was just made, or as it is read: its upper bits do not matter.
  GF_HD float value(uint32_t code) const {
    if (Codec<kCodec>::kUniform) {
      constexpr unsigned kShift = 32 - Codec<kCodec>::kBits;
      return gf_uniform_value((int32_t)(code << kShift) >> kShift, uniform);
    }
    if (kCodec == gradflow::kLog4) return gf_log4_value(code, exponent);
    if (kCodec == gradflow::kFp16)
      return gf_mul(gf_float_from_half((uint16_t)code), gf_half_unscale(exponent));
    if (kCodec == gradflow::kBf16) return gf_float_from_bf16((uint16_t)code);
    return gf_float(code);
  }
};

// Code i of a thread's eight, in and out of its words (which begin as zeros).
template <unsigned kBits>
GF_FN void put_code(uint32_t *words, unsigned i, uint32_t code) {
  constexpr uint32_t kMask = kBits == 32 ? ~0u : (1u << kBits % 32) - 1u;
  words[i * kBits / 32] |= (code & kMask) << i * kBits % 32;
}

template <unsigned kBits>
GF_FN uint32_t get_code(const uint32_t *words, unsigned i) {
  constexpr uint32_t kMask = kBits == 32 ? ~0u : (1u << kBits % 32) - 1u;
  return words[i * kBits / 32] >> i * kBits % 32 & kMask;
}

// Bytes of a thread's codes that are in the payload, if `count` of its elements are.
template <unsigned kBits>
GF_FN unsigned bytes_of(size_t count) {
  return ((count < kEach ? (unsigned)count : kEach) * kBits + 7) / 8;
}

}  // namespace gradflow_gpu

#endif
