// The steps of encoders and decoders, each in a file of its own; codecs.cu puts them together.
#ifndef GF_GPU_CODECS_CUH
#define GF_GPU_CODECS_CUH

#include "frame.cuh"

namespace gradflow_gpu {

void encode_blocks(const gf_codec_spec &spec, int dtype, const void *x, float *residual, size_t n,
                   uint64_t key, uint64_t first, uint8_t *body, Work *work, gpuStream_t stream);
void decode_blocks(const gf_codec_spec &spec, const uint8_t *body, float *out, size_t n, int add,
                   const int32_t *status, gpuStream_t stream);

// ---- deadzone

// A segment: its step, the blocks of 32 it has, and how many blocks and groups are before it.
struct DzSegment {
  uint32_t blocks;
  float step;
  uint32_t first_block, first_group;
};

// Parts of a scratch, behind the Work: see dz_scratch.
struct DzScratch {
  Work *work;
  DzSegment *segments;
  uint64_t *tiles;  // of the scan over the groups' bytes
  double *chunks;   // of the energy
  size_t tile_count, bytes;
};

DzScratch dz_scratch(void *scratch, size_t n);

// Puts segments into scratch and, if `body` is not null, into the payload.
void dz_put_segments(const gf_segment *segments, size_t count, uint8_t *body, const DzScratch &scratch,
                     gpuStream_t stream);
// One segment, whose step is the options' multiple of x's root mean square.
void dz_measure(const gf_codec_spec &spec, const void *x, int dtype, size_t n, uint8_t *body,
                const DzScratch &scratch, gpuStream_t stream);
// Of segments that were put; `unit` replaces the steps in the quantizer, where it is not 0.
void dz_encode(const gf_codec_spec &spec, size_t segments, size_t groups, int dtype, const void *x,
               float *residual, size_t n, float unit, uint8_t *body, const DzScratch &scratch,
               gpuStream_t stream);
// Reads the tables of a payload that was opened, and finds what is wrong with tables and blocks. With
// `expected` those of that many segments must be the ones that were put.
void dz_check(const uint8_t *in, size_t n, const size_t *expected, int32_t *status, const DzScratch &scratch,
              gpuStream_t stream);
void dz_decode(const uint8_t *in, float *out, size_t n, float unit, int add, const int32_t *status,
               const DzScratch &scratch, gpuStream_t stream);

// ---- sign1

// Parts of a scratch, behind the Work.
struct Sign1Scratch {
  Work *work;
  uint64_t *tiles;   // of the scan over the blocks' bits
  uint64_t *places;  // of a decoder: where each block's bits begin
  size_t bytes;
};

Sign1Scratch sign1_scratch(void *scratch, const gf_codec_spec &spec, size_t n);
void sign1_encode(const gf_codec_spec &spec, int dtype, const void *x, float *residual, size_t n,
                  uint8_t *body, const Sign1Scratch &scratch, gpuStream_t stream);
// Of a payload that was opened: finds what is wrong with its table and bits.
void sign1_check(const gf_codec_spec &spec, const uint8_t *in, size_t n, const int32_t *status,
                 const Sign1Scratch &scratch, gpuStream_t stream);
void sign1_decode(const gf_codec_spec &spec, const uint8_t *in, float *out, size_t n, int add,
                  const int32_t *status, const Sign1Scratch &scratch, gpuStream_t stream);

// ---- Arrays

size_t energy_chunks(size_t n);
// Sums of squares of x, and of y if that is not null, into out[0] and out[1], in the order of the CPU's
// `energy`.
void energies(const void *x, int dtype, const float *y, size_t n, double *out, double *chunks,
              gpuStream_t stream);
// The same of each tensor, up to elements ends[i]; `ends` lie in host memory.
void tensor_energies(const float *x, const float *residual, const uint64_t *ends, size_t count, double *out,
                     gpuStream_t stream);
void gather_pieces(const gf_piece *pieces, size_t count, float *target, size_t n, int32_t *finite,
                   gpuStream_t stream);
void scatter_pieces(const float *source, float scale, const gf_piece *pieces, size_t count, size_t n,
                    gpuStream_t stream);
void sum_two(float *dst, const float *a, const float *b, float scale, size_t n, int32_t *finite,
             gpuStream_t stream);
void scale_by_steps(float *x, const gf_segment *segments, size_t count, gpuStream_t stream);
void saturate_finite(float *x, size_t n, float largest, gpuStream_t stream);
void bound_infinities(float *x, size_t n, const int32_t *finite, gpuStream_t stream);
void owe_difference(float *residual, const float *values, const float *arrives, size_t n, gpuStream_t stream);

}  // namespace gradflow_gpu

#endif
