// Decoders of the codecs with a fixed layout, of payloads that were checked: eight consecutive elements a
// thread.
#include "blocks.cuh"
#include "codecs.cuh"

namespace gradflow_gpu {
namespace {

struct DecodeRun {
  const uint8_t *scales, *codes;
  float *out;
  size_t n;
  unsigned block_log2;
  int add;
  const int32_t *status;  // nothing is done if it is not GF_WIRE_OK
};

template <int kCodec>
__global__ void __launch_bounds__(kThreads) decode_kernel(DecodeRun run) {
  const size_t i = (size_t)blockIdx.x * kTile + threadIdx.x * kEach;
  if (i >= run.n || *run.status != GF_WIRE_OK) return;
  uint32_t words[Codec<kCodec>::kWords], scale = 1;
  float out[kEach];
  load_codes<Codec<kCodec>::kBytes>(run.codes + i * Codec<kCodec>::kBits / 8, words,
                                    bytes_of<Codec<kCodec>::kBits>(run.n - i));
  if (run.add) load_floats(run.out, i, run.n, out);
  if (Codec<kCodec>::kBlocks) {
    const size_t entry = i >> run.block_log2;
    scale = Codec<kCodec>::kUniform ? load_u32(run.scales + 4 * entry) : run.scales[entry];
  }
  if (Codec<kCodec>::kBlocks && Block<kCodec>::scale_nonfinite(scale)) {
    // Whatever is there, the sum is NaN; always the canonical one.
    for (unsigned k = 0; k < kEach; ++k) out[k] = gf_float(GF_CANONICAL_NAN);
  } else {
    const Block<kCodec> block = scale ? Block<kCodec>::of_scale(scale) : Block<kCodec>{};
    for (unsigned k = 0; k < kEach; ++k) {
      const float v = scale ? block.value(get_code<Codec<kCodec>::kBits>(words, k)) : 0.0f;
      out[k] = run.add ? host_add(out[k], v) : v;
    }
  }
  store_floats(run.out, i, run.n, out);
}

}  // namespace

void decode_blocks(const gf_codec_spec &spec, const uint8_t *body, float *out, size_t n, int add,
                   const int32_t *status, gpuStream_t stream) {
  if (n == 0) return;
  Layout layout = {};
  gradflow::layout_of(spec.id, &layout);
  DecodeRun run = {};
  run.scales = body;
  run.codes = body + gradflow::blocks(spec, layout, n) * (size_t)layout.scale_bytes;
  run.out = out;
  run.n = n;
  run.block_log2 = gradflow::log2_of(spec.block);
  run.add = add;
  run.status = status;
  const size_t grid = (n + kTile - 1) / kTile;
  switch (spec.id) {
    case gradflow::kNone:
      GPU_LAUNCH(decode_kernel<gradflow::kNone>, grid, kThreads, stream, run);
      break;
    case gradflow::kFp16:
      GPU_LAUNCH(decode_kernel<gradflow::kFp16>, grid, kThreads, stream, run);
      break;
    case gradflow::kBf16:
      GPU_LAUNCH(decode_kernel<gradflow::kBf16>, grid, kThreads, stream, run);
      break;
    case gradflow::kInt8:
      GPU_LAUNCH(decode_kernel<gradflow::kInt8>, grid, kThreads, stream, run);
      break;
    case gradflow::kInt4:
      GPU_LAUNCH(decode_kernel<gradflow::kInt4>, grid, kThreads, stream, run);
      break;
    case gradflow::kInt2:
      GPU_LAUNCH(decode_kernel<gradflow::kInt2>, grid, kThreads, stream, run);
      break;
    default:
      GPU_LAUNCH(decode_kernel<gradflow::kLog4>, grid, kThreads, stream, run);
  }
}

}  // namespace gradflow_gpu
