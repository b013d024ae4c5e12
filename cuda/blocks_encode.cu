// Encoders of the codecs with a fixed layout. A thread has eight consecutive elements; a codec's block
// belongs to a team of threads, or, where it is larger than a block of threads can hold, to all of them, in
// sweeps.
#include "blocks.cuh"
#include "codecs.cuh"

namespace gradflow_gpu {
namespace {

struct EncodeRun {
  const void *x;
  float *residual;  // null: no error feedback
  size_t n;
  unsigned block_log2;
  int dtype, stochastic;
  uint64_t key, first;
  uint8_t *scales, *codes;
  Work *work;
};

GPU_FN void load_sums(const EncodeRun &run, size_t i, float *v) {
  load_elements(run.x, run.dtype, i, run.n, v);
  if (!run.residual) return;
  float r[kEach];
  load_floats(run.residual, i, run.n, r);
  for (unsigned k = 0; k < kEach; ++k) v[k] = gf_add_residual(v[k], r[k]);
}

GPU_FN uint32_t max_of(const float *v) {
  uint32_t m = 0;
  for (unsigned k = 0; k < kEach; ++k) {
    const uint32_t a = gf_abs_bits(v[k]);
    m = a > m ? a : m;
  }
  return m;
}

// The largest of a team's; `threads` is a power of two and the same for all teams.
GPU_FN uint32_t max_of_team(uint32_t m, unsigned threads) {
  __shared__ uint32_t of_warp[kThreads / kWarp];
  for (unsigned mask = 1; mask < threads && mask < kWarp; mask *= 2) {
    const uint32_t other = shuffle_xor(m, mask);
    m = other > m ? other : m;
  }
  if (threads <= kWarp) return m;
  const unsigned warp = threadIdx.x / kWarp, warps = threads / kWarp;
  if (lane() == 0) of_warp[warp] = m;
  __syncthreads();
  for (unsigned w = warp / warps * warps, i = 0; i < warps; ++i) m = of_warp[w + i] > m ? of_warp[w + i] : m;
  return m;
}

// The eight elements from i on, of a block that has codes.
template <int kCodec>
GPU_FN uint32_t encode_eight(const EncodeRun &run, const Block<kCodec> &block, size_t i, const float *v) {
  uint32_t words[Codec<kCodec>::kWords] = {}, largest = 0;
  float lost[kEach];
  const uint64_t block_key = run.stochastic ? gf_dither_block(run.key, run.first + i) : 0;
  for (unsigned k = 0; k < kEach; ++k) {
    const uint32_t random = run.stochastic ? gf_dither(block_key, (uint32_t)(run.first + i + k)) : 0;
    const uint32_t code = i + k < run.n ? block.code(v[k], random, run.stochastic) : 0u;
    put_code<Codec<kCodec>::kBits>(words, k, code);
    lost[k] = kCodec == gradflow::kNone ? 0.0f : gf_sub(v[k], block.value(code));
    const uint32_t a = gf_abs_bits(v[k]);
    largest = a > largest ? a : largest;
  }
  store_codes<Codec<kCodec>::kBytes>(run.codes + i * Codec<kCodec>::kBits / 8, words,
                                     bytes_of<Codec<kCodec>::kBits>(run.n - i));
  if (!run.residual) return largest;
  if (Codec<kCodec>::kBlocks || largest < GF_INF_BITS) {
    store_floats(run.residual, i, run.n, lost);
  } else {  // without blocks, each element that is not finite keeps its own
    for (unsigned k = 0; k < kEach; ++k)
      if (i + k < run.n && gf_abs_bits(v[k]) < GF_INF_BITS) run.residual[i + k] = lost[k];
  }
  return largest;
}

// Of a block without codes: an all-zero one leaves nothing behind, one that is not finite keeps its residual.
template <int kCodec>
GPU_FN void encode_no_codes(const EncodeRun &run, size_t i, bool zero) {
  const uint32_t words[Codec<kCodec>::kWords] = {};
  const float lost[kEach] = {};
  store_codes<Codec<kCodec>::kBytes>(run.codes + i * Codec<kCodec>::kBits / 8, words,
                                     bytes_of<Codec<kCodec>::kBits>(run.n - i));
  if (zero && run.residual) store_floats(run.residual, i, run.n, lost);
}

template <int kCodec>
__global__ void __launch_bounds__(kThreads) encode_kernel(EncodeRun run) {
  const size_t span = (size_t)1 << run.block_log2 > kTile ? (size_t)1 << run.block_log2 : (size_t)kTile;
  const size_t begin = blockIdx.x * span, end = begin + span, mine = begin + threadIdx.x * kEach;
  float v[kEach];
  uint32_t m = 0;
  Block<kCodec> block = {};
  if (Codec<kCodec>::kBlocks) {
    const unsigned in_block = 1u << run.block_log2, team = in_block < kTile ? in_block / kEach : kThreads;
    for (size_t i = mine; i < end; i += kTile) {
      load_sums(run, i, v);
      const uint32_t own = max_of(v);
      m = own > m ? own : m;
    }
    m = max_of_team(m, team);
    const bool coded = m > 0 && m < GF_INF_BITS;
    if (coded) block = Block<kCodec>::of_maximum(m, run.stochastic);
    if (threadIdx.x % team == 0 && mine < run.n) {
      const size_t entry = mine >> run.block_log2;
      if (Codec<kCodec>::kUniform) {
        store_u32(run.scales + 4 * entry, coded ? m : (m ? GF_CANONICAL_NAN : 0u));
      } else {
        run.scales[entry] = (uint8_t)(coded ? block.exponent : (m ? GF_HALF_NONFINITE : 0u));
      }
      if (m >= GF_INF_BITS) atomicOr(&run.work->found, (uint32_t)kSawNonfinite);
    }
  }
  const bool again = end - begin > kTile || !Codec<kCodec>::kBlocks;
  for (size_t i = mine; i < end && i < run.n; i += kTile) {
    if (again) load_sums(run, i, v);
    if (Codec<kCodec>::kBlocks && (m == 0 || m >= GF_INF_BITS)) {
      encode_no_codes<kCodec>(run, i, m == 0);
      continue;
    }
    const uint32_t largest = encode_eight(run, block, i, v);
    if (!Codec<kCodec>::kBlocks && largest >= GF_INF_BITS)
      atomicOr(&run.work->found, (uint32_t)kSawNonfinite);
  }
}

}  // namespace

void encode_blocks(const gf_codec_spec &spec, int dtype, const void *x, float *residual, size_t n,
                   uint64_t key, uint64_t first, uint8_t *body, Work *work, gpuStream_t stream) {
  if (n == 0) return;
  Layout layout = {};
  gradflow::layout_of(spec.id, &layout);
  EncodeRun run = {};
  run.x = x;
  run.residual = residual;
  run.n = n;
  run.block_log2 = gradflow::log2_of(spec.block);
  run.dtype = dtype;
  run.stochastic = spec.rounding == GF_STOCHASTIC;
  run.key = key;
  run.first = first;
  run.scales = body;
  run.codes = body + gradflow::blocks(spec, layout, n) * (size_t)layout.scale_bytes;
  run.work = work;
  const size_t span = spec.block > kTile ? spec.block : kTile, grid = (n + span - 1) / span;
  switch (spec.id) {
    case gradflow::kNone:
      GPU_LAUNCH(encode_kernel<gradflow::kNone>, grid, kThreads, stream, run);
      break;
    case gradflow::kFp16:
      GPU_LAUNCH(encode_kernel<gradflow::kFp16>, grid, kThreads, stream, run);
      break;
    case gradflow::kBf16:
      GPU_LAUNCH(encode_kernel<gradflow::kBf16>, grid, kThreads, stream, run);
      break;
    case gradflow::kInt8:
      GPU_LAUNCH(encode_kernel<gradflow::kInt8>, grid, kThreads, stream, run);
      break;
    case gradflow::kInt4:
      GPU_LAUNCH(encode_kernel<gradflow::kInt4>, grid, kThreads, stream, run);
      break;
    case gradflow::kInt2:
      GPU_LAUNCH(encode_kernel<gradflow::kInt2>, grid, kThreads, stream, run);
      break;
    default:
      GPU_LAUNCH(encode_kernel<gradflow::kLog4>, grid, kThreads, stream, run);
  }
}

}  // namespace gradflow_gpu
