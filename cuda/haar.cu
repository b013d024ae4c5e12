// haar along memory on a GPU. Its two taps need no neighbours, so a thread takes eight elements through up to
// three levels, and reads and writes each of them once.
#include "wavelet.cuh"

namespace gradflow_gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kTile = kThreads * kEach;  // elements of a block of threads
constexpr int kFused = 3;                     // levels: eight elements become one of the lowest band

struct HaarRun {
  float h;
  const int32_t *finite;
  const float *v;  // of n elements, and what becomes of them
  float *a, *d[kFused];
  const float *low, *high[kFused];
  float *out;
  size_t n;
};

template <int kCount>
GPU_FN void store_few(float *p, size_t at, size_t n, const float *v) {
  if (kCount == 4 && at + 4 <= n && aligned(p + at, 16)) {
    Bytes16 b;
    for (unsigned k = 0; k < 4; ++k) b.w[k] = gf_bits(v[k % kCount]);
    *(Bytes16 *)(p + at) = b;
    return;
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    if (at + k < n) p[at + k] = v[k];
}

template <int kCount>
GPU_FN void load_few(const float *p, size_t at, size_t n, float *v) {
  if (kCount == 4 && at + 4 <= n && aligned(p + at, 16)) {
    const Bytes16 b = *(const Bytes16 *)(p + at);
    for (unsigned k = 0; k < 4; ++k) v[k % kCount] = gf_float(b.w[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) v[k] = at + k < n ? p[at + k] : 0.0f;
}

template <int kDepth, int kLevel = 1>
GPU_FN void haar_down(const HaarRun &run, size_t t, bool finite, float *v) {
  constexpr int kCount = (int)kEach >> kLevel;
  float d[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float x = gf_mul(run.h, v[2 * j]), y = gf_mul(run.h, v[2 * j + 1]);
    d[j] = bounded(gf_sub(x, y), finite);
    v[j] = bounded(gf_add(y, x), finite);
  }
  store_few<kCount>(run.d[kLevel - 1], t * kCount, run.n >> kLevel, d);
  if constexpr (kLevel < kDepth) {
    haar_down<kDepth, kLevel + 1>(run, t, finite, v);
  } else {
    store_few<kCount>(run.a, t * kCount, run.n >> kLevel, v);
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads) haar_analyze_kernel(HaarRun run) {
  const size_t t = (size_t)blockIdx.x * kThreads + threadIdx.x;
  if (t * kEach >= run.n) return;
  float v[kEach];
  load_floats(run.v, t * kEach, run.n, v);
  haar_down<kDepth>(run, t, !run.finite || *run.finite != 0, v);
}

template <int kLevel>
GPU_FN void haar_up(const HaarRun &run, size_t t, bool finite, float *v) {
  constexpr int kCount = (int)kEach >> kLevel;
  float d[kCount], fine[2 * kCount];
  load_few<kCount>(run.high[kLevel - 1], t * kCount, run.n >> kLevel, d);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float x = gf_mul(run.h, v[j]), y = gf_mul(run.h, d[j]);
    fine[2 * j] = bounded(gf_add(x, y), finite);
    fine[2 * j + 1] = bounded(gf_sub(x, y), finite);
  }
#pragma unroll
  for (int j = 0; j < 2 * kCount; ++j) v[j] = fine[j];
  if constexpr (kLevel > 1) haar_up<kLevel - 1>(run, t, finite, v);
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads) haar_synthesize_kernel(HaarRun run) {
  const size_t t = (size_t)blockIdx.x * kThreads + threadIdx.x;
  if (t * kEach >= run.n) return;
  constexpr int kCount = (int)kEach >> kDepth;
  float v[kEach];
  load_few<kCount>(run.low, t * kCount, run.n >> kDepth, v);
  haar_up<kDepth>(run, t, !run.finite || *run.finite != 0, v);
  store_floats(run.out, t * kEach, run.n, v);
}

}  // namespace

void haar_line(const gf_wavelet &w, const float *x, float *out, const int32_t *finite, float *const *rooms,
               gpuStream_t stream) {
  HaarRun run = {};
  run.h = w.filter[0];
  run.finite = finite;
  const int levels = (int)w.levels;
  const float *band = x;
  for (int done = 0, turn = 0; done < levels; ++turn) {
    const int rest = levels - done;
    // The coarsest levels last or, going back, first: passes over most elements take as many as they can.
    const int depth = w.inverse ? (rest % kFused ? rest % kFused : kFused) : (rest < kFused ? rest : kFused);
    const int fine = w.inverse ? rest - depth : done;  // levels below those of this pass
    done += depth;
    run.n = w.width >> fine;
    float *const made = done == levels ? out : rooms[turn % 2];
    for (int l = 1; l <= depth; ++l) {
      run.d[l - 1] = out + (w.width >> (fine + l));
      run.high[l - 1] = x + (w.width >> (fine + l));
    }
    run.v = run.low = band;
    run.a = run.out = made;
    band = made;
    const size_t blocks = (run.n + kTile - 1) / kTile;
    if (w.inverse) {
      if (depth == 1) GPU_LAUNCH(haar_synthesize_kernel<1>, blocks, kThreads, stream, run);
      if (depth == 2) GPU_LAUNCH(haar_synthesize_kernel<2>, blocks, kThreads, stream, run);
      if (depth == 3) GPU_LAUNCH(haar_synthesize_kernel<3>, blocks, kThreads, stream, run);
    } else {
      if (depth == 1) GPU_LAUNCH(haar_analyze_kernel<1>, blocks, kThreads, stream, run);
      if (depth == 2) GPU_LAUNCH(haar_analyze_kernel<2>, blocks, kThreads, stream, run);
      if (depth == 3) GPU_LAUNCH(haar_analyze_kernel<3>, blocks, kThreads, stream, run);
    }
  }
}

}  // namespace gradflow_gpu
