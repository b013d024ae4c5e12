// The kernels of one instruction level, and the choice among levels. A "run" is a number of elements that
// starts at a block's border; only its last block may be incomplete.
#ifndef GF_KERNELS_LEVELS_H
#define GF_KERNELS_LEVELS_H

#include <stddef.h>
#include <stdint.h>

namespace gradflow {

// What the encoders of all codecs share.
struct EncodeRun {
  const float *x;
  float *residual;  // null: no error feedback
  size_t n;
  uint32_t block;
  bool stochastic;
  uint64_t key;
  uint64_t first;   // global index of x[0]
  uint8_t *scales;  // one entry a block
  uint8_t *codes;
};

struct DecodeRun {
  const uint8_t *scales;
  const uint8_t *codes;
  float *out;
  size_t n;
  uint32_t block;
  bool add;  // out += values
};

// One segment of deadzone: elements with one step. Sizes and groups as in docs/wire-format.md.
struct DeadzoneEncode {
  const float *x;
  float *residual;  // null: no error feedback
  size_t n;
  float step;          // 0: everything becomes zero
  float offset;        // of the rounding, below 1
  uint32_t code_bits;  // codes up to 2^code_bits
  uint8_t *sizes;
  uint8_t *out;
  bool nonfinite;  // set where a block is not finite
};

struct DeadzoneDecode {
  const uint8_t *sizes;
  const uint8_t *in;
  float *out;
  size_t n;
  float step;
  bool add;  // out += values
};

// deadzone's entropy stage: of a packed body (its groups begin at `groups`) to two streams; each has room for
// `most` bytes and those of a group.
struct DeadzoneSqueeze {
  const uint8_t *body, *groups;
  size_t n, most;
  uint8_t *coded, *raw;
  size_t coded_bytes, raw_bytes;  // what was written
};

struct DeadzoneUnsqueeze {
  const uint8_t *table;  // of the segments, which have been checked
  uint32_t segments;
  size_t n;
  const uint8_t *coded, *raw;
  size_t coded_bytes, raw_bytes;
  uint8_t *sizes, *groups;  // where the packed body's go
  uint8_t *end;             // set to where the groups end
};

// Of the n elements a line of `width` (rows is 0), or the upper left of a matrix of `columns`, is
// transformed.
struct WaveletRun {
  const float *x;
  float *out;
  const float *filter;
  int taps, levels;
  size_t n, rows, width, columns;
  bool inverse;
  bool finite;  // the input is: so will be the output
};

// The entropy stage of codes of fixed width; streams as above. Blocks have a scale of 4 bytes each, or an
// exponent.
struct CodeSqueeze {
  int bits, scale_bytes;
  uint32_t block;
  const uint8_t *scales, *codes;
  size_t n, most;
  uint8_t *coded, *raw;
  size_t coded_bytes, raw_bytes;  // what was written
};

struct CodeUnsqueeze {
  int bits, scale_bytes;
  uint32_t block;
  const uint8_t *scales;  // which have been checked
  size_t n;
  const uint8_t *coded, *raw;
  size_t coded_bytes, raw_bytes;
  uint8_t *codes;  // zeros
};

struct Level {
  const char *name;
  // Encoders return whether one of the blocks is not finite.
  bool (*encode_uniform)(int bits, const EncodeRun &run);
  void (*decode_uniform)(int bits, const DecodeRun &run);
  bool (*encode_log4)(const EncodeRun &run);
  void (*decode_log4)(const DecodeRun &run);
  bool (*encode_fp16)(const EncodeRun &run);
  void (*decode_fp16)(const DecodeRun &run);
  bool (*encode_bf16)(const EncodeRun &run);
  void (*decode_bf16)(const DecodeRun &run);
  bool (*encode_none)(const EncodeRun &run);
  void (*decode_none)(const DecodeRun &run);
  size_t (*encode_deadzone)(DeadzoneEncode *run);  // returns the bytes of its groups
  bool (*check_deadzone)(const DeadzoneDecode &run, bool *nonfinite);
  void (*decode_deadzone)(const DeadzoneDecode &run);
  bool (*squeeze_deadzone)(DeadzoneSqueeze *run);
  bool (*unsqueeze_deadzone)(DeadzoneUnsqueeze *run);
  bool (*squeeze_codes)(CodeSqueeze *run);
  bool (*unsqueeze_codes)(const CodeUnsqueeze &run);
  // Returns the bytes behind the table of scales.
  size_t (*encode_sign1)(const EncodeRun &run, bool *nonfinite);
  // Whether an encoder can have made this, with `bytes` behind the table.
  bool (*check_sign1)(const DecodeRun &run, size_t bytes, bool *nonfinite);
  void (*decode_sign1)(const DecodeRun &run);
  // topk's body is at `codes`; returns its bytes.
  size_t (*encode_topk)(const EncodeRun &run, size_t keep, bool *nonfinite);
  bool (*check_topk)(const uint8_t *body, size_t bytes, size_t n, bool *nonfinite);
  void (*decode_topk)(const uint8_t *body, size_t bytes, float *out, size_t n, bool add);
  // Of k ascending indices below n; the decoder says whether all of `in` is their code, or writes nothing.
  size_t (*encode_indices)(const int64_t *indices, size_t k, uint64_t n, uint8_t *out);
  bool (*decode_indices)(const uint8_t *in, size_t bytes, uint64_t n, int64_t *out, size_t k);
  // Whether no code of this width (8, 4, 2) is the most negative one, which encoders never write.
  bool (*codes_valid)(int bits, const uint8_t *codes, size_t bytes);
  uint32_t (*crc32c)(uint32_t crc, const uint8_t *data, size_t bytes);
  bool (*load_f32)(const void *src, int dtype, float *dst, size_t n);
  void (*store_f32)(const float *src, float scale, void *dst, int dtype, size_t n);
  void (*sum_f32)(float *dst, const float *const *srcs, int count, float scale, size_t n);
  void (*sum_f64)(double *dst, const double *const *srcs, int count, double scale, size_t n);
  double (*energy)(const float *x, size_t n);
  void (*wavelet)(const WaveletRun &run);
};

extern const Level kPortable;
#if defined(__x86_64__)
extern const Level kAvx2;
extern const Level kAvx512;
#endif

// Levels that this machine can run, best first; null-terminated.
const Level *const *available_levels();
const Level &level();
// False if the machine lacks it; "auto" takes the best.
bool set_level(const char *name);

}  // namespace gradflow

#endif
