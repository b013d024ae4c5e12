// Kernels on arrays: sums of squares, and tensors in and out of buckets.
#include <string.h>

#include "codecs.cuh"
#include "memory.cuh"

namespace gradflow_gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kEnergyLanes = 8;                   // of a chunk
constexpr unsigned kChunks = kThreads / kEnergyLanes;  // of a block of threads
constexpr unsigned kPieceSpan = 1024;                  // elements of a bucket that a warp moves
constexpr unsigned kTensors = 256;  // of a launch: as arguments, so that they need no memory of their own

#if defined(__CUDA_ARCH__)
GPU_FN double add_squared(double sum, double v) { return __dadd_rn(sum, __dmul_rn(v, v)); }
#else
GPU_FN double add_squared(double sum, double v) { return sum + v * v; }
#endif

// The chunk that begins at element `begin`, for eight threads, one of its lanes each: all of them get its
// sum.
GPU_FN double energy_of_chunk(const void *x, int dtype, size_t begin, size_t n) {
  double sum = 0.0;
  for (unsigned k = 0; k < GF_ENERGY_CHUNK / kEnergyLanes; ++k) {
    const size_t i = begin + k * kEnergyLanes + threadIdx.x % kEnergyLanes;
    if (i >= n) break;
    const float v = load_element(x, dtype, i);
    if (gf_abs_bits(v) < GF_INF_BITS) sum = add_squared(sum, (double)v);
  }
  // ((0+4) + (1+5)) + ((2+6) + (3+7))
  sum += shuffle_xor(sum, 4);
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  return sum;
}

// Of a lane of chunks in each lane of a warp: halves are added to each other.
GPU_FN double energy_of_lanes(double sum) {
  for (unsigned half = GF_ENERGY_LANES / 2; half; half /= 2) sum += shuffle_xor(sum, half);
  return sum;
}

// Blocks beyond `chunk_count` chunks are those of y.
__global__ void __launch_bounds__(kThreads)
    chunk_energy_kernel(const void *x, int dtype, const float *y, size_t n, size_t chunk_count,
                        double *chunks) {
  const size_t blocks = (chunk_count + kChunks - 1) / kChunks;
  const bool second = blockIdx.x >= blocks;
  const size_t chunk = (blockIdx.x - (second ? blocks : 0)) * kChunks + threadIdx.x / kEnergyLanes;
  const double sum =
      energy_of_chunk(second ? (const void *)y : x, second ? (int)GF_F32 : dtype, chunk * GF_ENERGY_CHUNK, n);
  if (threadIdx.x % kEnergyLanes == 0 && chunk < chunk_count)
    chunks[(second ? chunk_count : 0) + chunk] = sum;
}

// A warp for x, and one for y.
__global__ void energy_kernel(const double *chunks, size_t chunk_count, unsigned arrays, double *out) {
  const unsigned array = threadIdx.x / kWarp;
  double sum = 0.0;
  if (array < arrays)
    for (size_t i = lane(); i < chunk_count; i += GF_ENERGY_LANES) sum += chunks[array * chunk_count + i];
  sum = energy_of_lanes(sum);
  if (lane() == 0) out[array] = sum;
}

struct TensorRun {
  uint64_t ends[kTensors];
  uint64_t begin;  // of the first
  unsigned count;
  const float *x, *residual;
  double *out;  // of the first
};

// A block for a tensor, each eight threads of it for one of the lanes that chunks are added in; blocks beyond
// `count` are those of the residual.
__global__ void __launch_bounds__(kThreads) tensor_energy_kernel(TensorRun run) {
  static_assert(kChunks == GF_ENERGY_LANES, "a lane for each eight threads");
  __shared__ double lanes[GF_ENERGY_LANES];
  const bool second = blockIdx.x >= run.count;
  const unsigned tensor = blockIdx.x - (second ? run.count : 0), chunk = threadIdx.x / kEnergyLanes;
  const size_t begin = tensor ? run.ends[tensor - 1] : run.begin, n = run.ends[tensor] - begin;
  const float *const x = (second ? run.residual : run.x) + begin;
  double sum = 0.0;
  for (size_t at = 0; at < n; at += kChunks * GF_ENERGY_CHUNK)
    sum += energy_of_chunk(x, GF_F32, at + chunk * GF_ENERGY_CHUNK, n);
  if (threadIdx.x % kEnergyLanes == 0) lanes[chunk] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  sum = energy_of_lanes(lanes[lane()]);
  if (lane()) return;
  run.out[2 * tensor + second] = sum;
  if (!run.residual) run.out[2 * tensor + 1] = 0.0;
}

// ---- Buckets ------------------------------------------------------------------------------------------

// The last piece that begins at element `at` or before; 0 if there is none.
GPU_FN size_t piece_at(const gf_piece *pieces, size_t count, size_t at) {
  size_t low = 0, high = count;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (pieces[middle].offset <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What of a piece lies in a span of the bucket: elements `from` to `to` of it.
GPU_FN bool part_of(const gf_piece &p, size_t begin, size_t end, size_t *from, size_t *to) {
  if (p.offset + p.count <= begin || p.offset >= end) return false;
  *from = begin > p.offset ? begin - p.offset : 0;
  *to = p.offset + p.count < end ? p.count : end - p.offset;
  return true;
}

// Zeros where no piece is, elements elsewhere; returns whether all of them are finite.
GPU_FN bool move_in(const gf_piece &p, size_t from, size_t to, float *target) {
  bool finite = true;
  const bool wide = p.dtype == GF_F32 && aligned((const float *)p.address + from, 16) &&
                    (!target || aligned(target + p.offset + from, 16));
  const size_t vectors = wide ? (to - from) / 4 : 0;
  for (size_t k = lane(); k < vectors; k += kWarp) {
    const Bytes16 b = ((const Bytes16 *)((const float *)p.address + from))[k];
    for (unsigned w = 0; w < 4; ++w) finite = finite && (b.w[w] & 0x7fffffffu) < GF_INF_BITS;
    if (target) ((Bytes16 *)(target + p.offset + from))[k] = b;
  }
  for (size_t i = from + 4 * vectors + lane(); i < to; i += kWarp) {
    const float v = load_element((const void *)p.address, (int)p.dtype, i);
    finite = finite && gf_abs_bits(v) < GF_INF_BITS;
    if (target) target[p.offset + i] = v;
  }
  return finite;
}

GPU_FN void clear(float *target, size_t begin, size_t end) {
  for (size_t i = begin + lane(); i < end; i += kWarp) target[i] = 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const gf_piece *pieces, size_t count, float *target, size_t n, int32_t *finite) {
  const size_t warp = (size_t)blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const size_t begin = warp * kPieceSpan, end = begin + kPieceSpan < n ? begin + kPieceSpan : n;
  if (begin >= n) return;
  bool all = true;
  size_t filled = begin;  // up to there the bucket has its elements
  for (size_t k = piece_at(pieces, count, begin); k < count && pieces[k].offset < end; ++k) {
    const gf_piece p = pieces[k];
    size_t from, to;
    if (!part_of(p, begin, end, &from, &to)) continue;
    if (target) clear(target, filled, p.offset + from);
    all = move_in(p, from, to, target) && all;
    filled = p.offset + to;
  }
  if (target) clear(target, filled, end);
  if (!all) atomicAnd(finite, (int32_t)0);
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const float *source, float scale, const gf_piece *pieces, size_t count, size_t n) {
  const size_t warp = (size_t)blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const size_t begin = warp * kPieceSpan, end = begin + kPieceSpan < n ? begin + kPieceSpan : n;
  if (begin >= n) return;
  for (size_t k = piece_at(pieces, count, begin); k < count && pieces[k].offset < end; ++k) {
    const gf_piece p = pieces[k];
    size_t from, to;
    if (!part_of(p, begin, end, &from, &to)) continue;
    const bool wide = p.dtype == GF_F32 && aligned((const float *)p.address + from, 16) &&
                      aligned(source + p.offset + from, 16);
    const size_t vectors = wide ? (to - from) / 4 : 0;
    for (size_t v = lane(); v < vectors; v += kWarp) {
      Bytes16 b = ((const Bytes16 *)(source + p.offset + from))[v];
      for (unsigned w = 0; w < 4; ++w) b.w[w] = gf_bits(host_mul(gf_float(b.w[w]), scale));
      ((Bytes16 *)((float *)p.address + from))[v] = b;
    }
    for (size_t i = from + 4 * vectors + lane(); i < to; i += kWarp)
      store_element((void *)p.address, (int)p.dtype, i, host_mul(source[p.offset + i], scale));
  }
}

__global__ void set_kernel(int32_t *p, int32_t value) {
  if (threadIdx.x == 0) *p = value;
}

size_t warps_blocks(size_t n) {
  const size_t warps = (n + kPieceSpan - 1) / kPieceSpan;
  return (warps + kThreads / kWarp - 1) / (kThreads / kWarp);
}

}  // namespace

size_t energy_chunks(size_t n) { return (n + GF_ENERGY_CHUNK - 1) / GF_ENERGY_CHUNK; }

void energies(const void *x, int dtype, const float *y, size_t n, double *out, double *chunks,
              gpuStream_t stream) {
  const size_t count = energy_chunks(n), blocks = (count + kChunks - 1) / kChunks;
  const unsigned arrays = y ? 2 : 1;
  if (n) GPU_LAUNCH(chunk_energy_kernel, blocks * arrays, kThreads, stream, x, dtype, y, n, count, chunks);
  GPU_LAUNCH(energy_kernel, 1, 2 * kWarp, stream, chunks, count, arrays, out);
}

void tensor_energies(const float *x, const float *residual, const uint64_t *ends, size_t count, double *out,
                     gpuStream_t stream) {
  TensorRun run = {};
  run.x = x;
  run.residual = residual;
  for (size_t first = 0; first < count; first += kTensors) {
    run.count = count - first < kTensors ? (unsigned)(count - first) : kTensors;
    memcpy(run.ends, ends + first, run.count * sizeof(uint64_t));
    run.out = out + 2 * first;
    GPU_LAUNCH(tensor_energy_kernel, run.count * (residual ? 2 : 1), kThreads, stream, run);
    run.begin = run.ends[run.count - 1];
  }
}

void gather_pieces(const gf_piece *pieces, size_t count, float *target, size_t n, int32_t *finite,
                   gpuStream_t stream) {
  GPU_LAUNCH(set_kernel, 1, kWarp, stream, finite, 1);
  if (n) GPU_LAUNCH(gather_kernel, warps_blocks(n), kThreads, stream, pieces, count, target, n, finite);
}

void scatter_pieces(const float *source, float scale, const gf_piece *pieces, size_t count, size_t n,
                    gpuStream_t stream) {
  if (n && count)
    GPU_LAUNCH(scatter_kernel, warps_blocks(n), kThreads, stream, source, scale, pieces, count, n);
}

}  // namespace gradflow_gpu
