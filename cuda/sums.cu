// Kernels on plain arrays of float32, an element at a time: sums, steps of segments, what a residual owes.
#include <string.h>

#include "codecs.cuh"
#include "memory.cuh"

namespace gradflow_gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kSpan = 1024;     // elements that a warp scales
constexpr unsigned kSegments = 128;  // of a launch: as arguments, so that they need no memory of their own

// The first of a thread's kEach elements.
GPU_FN size_t own_elements() { return ((size_t)blockIdx.x * kThreads + threadIdx.x) * kEach; }

size_t blocks_for(size_t n) { return (n + kThreads * kEach - 1) / (kThreads * kEach); }

__global__ void __launch_bounds__(kThreads)
    sum_kernel(float *dst, const float *a, const float *b, float scale, size_t n, int32_t *finite) {
  const size_t i = own_elements();
  bool all = true;
  if (i < n) {
    float v[kEach], w[kEach];
    load_floats(a, i, n, v);
    if (b) {
      load_floats(b, i, n, w);
      for (unsigned k = 0; k < kEach; ++k) v[k] = host_add(v[k], w[k]);
    }
    for (unsigned k = 0; k < kEach; ++k) {
      all = all && gf_abs_bits(v[k]) < GF_INF_BITS;
      v[k] = host_mul(v[k], scale);
    }
    if (dst) store_floats(dst, i, n, v);
  }
  if (finite && ballot(!all) && lane() == 0) atomicAnd(finite, (int32_t)0);
}

// ---- Steps of segments ----------------------------------------------------------------------------------

struct ScaleRun {
  gf_segment segments[kSegments];
  unsigned count;
  size_t begin;  // of the first
  float *x;
};

// Elements from `from` to `to`, for one warp.
GPU_FN void scale_part(float *x, size_t from, size_t to, float step) {
  const size_t wide = from + (0 - (uintptr_t)(x + from)) % 16 / sizeof(float);
  const size_t first = wide < to ? wide : to;
  const size_t vectors = (to - first) / 4, rest = first + 4 * vectors;
  for (size_t i = from + lane(); i < first; i += kWarp) x[i] = host_mul(x[i], step);
  for (size_t k = lane(); k < vectors; k += kWarp) {
    Bytes16 b = ((const Bytes16 *)(x + first))[k];
    for (unsigned w = 0; w < 4; ++w) b.w[w] = gf_bits(host_mul(gf_float(b.w[w]), step));
    ((Bytes16 *)(x + first))[k] = b;
  }
  for (size_t i = rest + lane(); i < to; i += kWarp) x[i] = host_mul(x[i], step);
}

// A warp takes a span of the array, one segment in it after the other.
__global__ void __launch_bounds__(kThreads) scale_kernel(ScaleRun run) {
  const size_t warp = (size_t)blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const size_t span = (run.begin / kSpan + warp) * kSpan, end = span + kSpan;
  size_t at = span > run.begin ? span : run.begin;
  unsigned k = 0, high = run.count;  // k becomes the first segment that ends behind `at`
  while (k < high) {
    const unsigned middle = (k + high) / 2;
    if (run.segments[middle].end <= at) {
      k = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; k < run.count && at < end; ++k) {
    const size_t to = run.segments[k].end < end ? run.segments[k].end : end;
    scale_part(run.x, at, to, run.segments[k].step);
    at = to;
  }
}

// ---- What is not finite, and what is owed ---------------------------------------------------------------

// Infinity becomes the largest float of its sign.
GPU_FN float bounded(float v) {
  return gf_abs_bits(v) == GF_INF_BITS ? gf_float((gf_bits(v) & 0x80000000u) | GF_MAX_BITS) : v;
}

// Hardly any element is infinite: what stays is not written.
__global__ void __launch_bounds__(kThreads) bound_kernel(float *x, size_t n, const int32_t *finite) {
  const size_t i = own_elements();
  if (i >= n || (finite && *finite == 0)) return;
  float v[kEach];
  bool changed = false;
  load_floats(x, i, n, v);
  for (unsigned k = 0; k < kEach; ++k) {
    changed = changed || gf_abs_bits(v[k]) == GF_INF_BITS;
    v[k] = bounded(v[k]);
  }
  if (changed) store_floats(x, i, n, v);
}

// The same for finite elements that are too large for a dtype with 16 bits.
__global__ void __launch_bounds__(kThreads) saturate_kernel(float *x, size_t n, float largest) {
  const size_t i = own_elements();
  if (i >= n) return;
  const uint32_t most = gf_bits(largest);
  float v[kEach];
  bool changed = false;
  load_floats(x, i, n, v);
  for (unsigned k = 0; k < kEach; ++k) {
    const uint32_t magnitude = gf_abs_bits(v[k]);
    if (magnitude <= most || magnitude >= GF_INF_BITS) continue;
    v[k] = gf_float((gf_bits(v[k]) & 0x80000000u) | most);
    changed = true;
  }
  if (changed) store_floats(x, i, n, v);
}

// Nothing was rounded in most places: there the residual stays as it is, a negative zero too.
__global__ void __launch_bounds__(kThreads)
    owe_kernel(float *residual, const float *values, const float *arrives, size_t n) {
  const size_t i = own_elements();
  if (i >= n) return;
  float owed[kEach], v[kEach], w[kEach];
  bool changed = false;
  load_floats(values, i, n, v);
  load_floats(arrives, i, n, w);
  for (unsigned k = 0; k < kEach; ++k) {
    v[k] = gf_sub(v[k], w[k]);
    if (gf_abs_bits(v[k]) >= GF_INF_BITS) v[k] = 0.0f;
    changed = changed || gf_abs_bits(v[k]) != 0;
  }
  if (!changed) return;
  load_floats(residual, i, n, owed);
  for (unsigned k = 0; k < kEach; ++k)
    if (gf_abs_bits(v[k]) != 0) owed[k] = bounded(host_add(owed[k], v[k]));
  store_floats(residual, i, n, owed);
}

}  // namespace

void sum_two(float *dst, const float *a, const float *b, float scale, size_t n, int32_t *finite,
             gpuStream_t stream) {
  if (n && (dst || finite))
    GPU_LAUNCH(sum_kernel, blocks_for(n), kThreads, stream, dst, a, b, scale, n, finite);
}

void scale_by_steps(float *x, const gf_segment *segments, size_t count, gpuStream_t stream) {
  ScaleRun run = {};
  run.x = x;
  for (size_t first = 0; first < count; first += kSegments) {
    run.count = count - first < kSegments ? (unsigned)(count - first) : kSegments;
    memcpy(run.segments, segments + first, run.count * sizeof(gf_segment));
    const size_t end = run.segments[run.count - 1].end;
    const size_t spans = (end + kSpan - 1) / kSpan - run.begin / kSpan;
    if (end > run.begin)
      GPU_LAUNCH(scale_kernel, (spans + kThreads / kWarp - 1) / (kThreads / kWarp), kThreads, stream, run);
    run.begin = end;
  }
}

void bound_infinities(float *x, size_t n, const int32_t *finite, gpuStream_t stream) {
  if (n) GPU_LAUNCH(bound_kernel, blocks_for(n), kThreads, stream, x, n, finite);
}

void saturate_finite(float *x, size_t n, float largest, gpuStream_t stream) {
  if (n) GPU_LAUNCH(saturate_kernel, blocks_for(n), kThreads, stream, x, n, largest);
}

void owe_difference(float *residual, const float *values, const float *arrives, size_t n,
                    gpuStream_t stream) {
  if (n) GPU_LAUNCH(owe_kernel, blocks_for(n), kThreads, stream, residual, values, arrives, n);
}

}  // namespace gradflow_gpu
