// The one C interface between the kernels (module hvd_gradflow.device._kernels) and whoever calls
// them from compiled code (module hvd_gradflow.reduce._engine). The kernels module hands out a
// pointer to `gf_api` in a PyCapsule named GF_API_CAPSULE, so neither module links the other.
#ifndef GF_API_H
#define GF_API_H

#include <stddef.h>
#include <stdint.h>

#define GF_API_VERSION 3
#define GF_API_CAPSULE "hvd_gradflow.device._kernels.api"

// Element types, as written in wire headers and in announcements.
enum gf_dtype { GF_F32 = 1, GF_F64 = 2, GF_F16 = 3, GF_BF16 = 4 };

enum gf_rounding { GF_NEAREST = 0, GF_STOCHASTIC = 1 };

// What a decoder may answer. Everything but GF_WIRE_OK becomes a WireError.
enum gf_wire_status {
  GF_WIRE_OK = 0,
  GF_WIRE_TRUNCATED = 1,  // fewer bytes than header + payload length
  GF_WIRE_MAGIC = 2,      // not one of our payloads
  GF_WIRE_VERSION = 3,    // a version this build does not read
  GF_WIRE_CODEC = 4,      // another codec, or another configuration of it, than expected
  GF_WIRE_COUNT = 5,      // another element count than expected
  GF_WIRE_LENGTH = 6,     // the payload's length cannot be right for its count
  GF_WIRE_CHECKSUM = 7,   // CRC32C differs
  GF_WIRE_CONTENT = 8     // well-formed header, impossible body
};

// A codec with its options; plain data, it travels in the engine's messages (32 bytes).
struct gf_codec_spec {
  uint16_t id;         // wire id of the codec
  uint8_t bits;        // bits per code (uniform quantizer), else 0
  uint8_t rounding;    // gf_rounding
  uint32_t block;      // elements per block; 1 where the codec has no blocks
  uint64_t seed;       // of the stochastic rounding
  uint64_t params[2];  // the codec's own options
};

// params[1], bit 24: whether payloads are entropy coded (int8, int4, int2, log4, deadzone).
// deadzone's params: [0] holds a double, what is asked for; [1] the rest.
//   bits 0-7: gf_control; bits 8-15: gf_second; bits 32-63: a float, what is added before rounding down;
//   bits 16-23: the domain, which kernels need not know
enum gf_control {
  GF_CONTROL_STEP = 0,        // the step, in units of the gradient's root mean square
  GF_CONTROL_SIMILARITY = 1,  // the cosine between the true average and what arrives
  GF_CONTROL_RATIO = 2        // uncompressed bytes over bytes sent
};
enum gf_second {
  GF_SECOND_AUTO = 0,       // exact between up to four nodes, requantize between more
  GF_SECOND_EXACT = 1,      // the sum of the codes, as it is
  GF_SECOND_REQUANTIZE = 2  // the sum is encoded once more, with error feedback
};

// topk's params: [0] holds a double, the part of the elements that is sent; [1] is 0.

// Elements with one step, up to `end` (exclusive) of a payload; a multiple of 32 but for the last one.
struct gf_segment {
  uint64_t end;
  float step;
  uint32_t reserved;
};

// One stochastic draw is a function of (key, index): the key is made once per payload by gf_dither_key.
struct gf_codec_ops {
  void *ctx;  // passed first to each function; a codec in C++ ignores it
  // Upper bound of a payload's bytes, header included, whatever the content.
  size_t (*max_encoded_size)(void *ctx, const gf_codec_spec *spec, size_t n);
  // Encode x[0..n) (+ residual[0..n) if not null) into out, header included; returns bytes written.
  // With a residual: afterwards residual = (x + residual) - decoded, except in blocks that are not
  // finite, where it keeps its value. `first` is the global index of x[0] in its tensor or bucket, a
  // multiple of the block; it feeds the dither.
  size_t (*encode)(void *ctx, const gf_codec_spec *spec, const float *x, float *residual, size_t n,
                   uint64_t dither_key, uint64_t first, uint8_t *out);
  // Both check the whole payload before they write; they return a gf_wire_status.
  int (*decode)(void *ctx, const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *out, size_t n);
  int (*decode_add)(void *ctx, const gf_codec_spec *spec, const uint8_t *in, size_t bytes, float *acc,
                    size_t n);

  // Null but for codecs whose ranks agree on steps ("stepped" codecs): these are integers times a step, so
  // their sum is a sum of integers, which is exact in any order.
  // As encode, with these steps.
  size_t (*encode_stepped)(void *ctx, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                           const float *x, float *residual, size_t n, uint8_t *out);
  // Adds the integers to acc; the payload must have these steps.
  int (*add_codes)(void *ctx, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                   const uint8_t *in, size_t bytes, float *acc, size_t n);
  // Encodes integers: a payload of these steps that decodes to them times the steps.
  size_t (*encode_codes)(void *ctx, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                         const float *codes, size_t n, uint8_t *out);

  // Null but for codecs whose sums are sparse: writes the specification by which a sum of payloads is
  // encoded, all of it. The owner of a chunk then encodes its own part as the others do, so that the sum is
  // exact.
  void (*sum_spec)(void *ctx, const gf_codec_spec *spec, gf_codec_spec *of_sums);
};

struct gf_api {
  int version;                                     // GF_API_VERSION
  const gf_codec_ops *(*find_codec)(uint16_t id);  // null: no such codec in C++
  uint64_t (*dither_key)(uint64_t seed, uint64_t rank, uint64_t name_hash, uint64_t sequence, uint64_t stage);
  uint32_t (*crc32c)(uint32_t seed, const void *data, size_t bytes);
  // dst[i] = (float) src[i], src of any gf_dtype. Returns 1 if every element is finite, else 0. Where src is
  // float already, dst may be null: then it only looks.
  int (*load_f32)(const void *src, int dtype, float *dst, size_t n);
  // dst[i] = (dtype) (src[i] * scale), rounded to nearest even.
  void (*store_f32)(const float *src, float scale, void *dst, int dtype, size_t n);
  // dst = (srcs[0] + srcs[1] + ... ) * scale, added in that order; count >= 1; dst may be srcs[0].
  void (*sum_f32)(float *dst, const float *const *srcs, int count, float scale, size_t n);
  void (*sum_f64)(double *dst, const double *const *srcs, int count, double scale, size_t n);
  // Sum of squares in a fixed order (the same value on every SIMD level); non-finite elements count 0.
  double (*energy)(const float *x, size_t n);
};

#endif
