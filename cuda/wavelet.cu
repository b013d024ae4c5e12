// Periodised orthogonal wavelets on a GPU: the CPU's sums (cython_ext/kernels/wavelet_loops.h) in its order,
// so the same bits. A level is a launch, a pair of coefficients a thread.
#include "wavelet.cuh"

#include <string.h>

namespace gradflow_gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kMostTaps = 8, kMostLevels = 8;

// Lines side by side: element i of line l is at p[l * line + i * step].
template <typename T>
struct Lines {
  T *p;
  size_t line, step;
};

// One level of all lines.
struct LevelRun {
  float filter[kMostTaps];
  const int32_t *finite;  // as of gf_gpu_api.wavelet
  Lines<const float> a, d;
  Lines<float> low, high;
  Lines<const float> band;
  Lines<float> out;
  size_t half, lines;
  bool across;  // neighbours in memory are those of neighbouring lines
};

template <int kTaps>
GPU_FN float high_tap(const float *filter, int k) {
  return k % 2 ? filter[kTaps - 1 - k] : -filter[kTaps - 1 - k];
}

// Which pair of coefficients a thread has; false if none.
GPU_FN bool own_pair(const LevelRun &run, size_t *i, size_t *line) {
  const size_t t = (size_t)blockIdx.x * kThreads + threadIdx.x, inner = run.across ? run.lines : run.half;
  if (t >= run.half * run.lines) return false;
  *i = run.across ? t / inner : t % inner;
  *line = run.across ? t % inner : t / inner;
  return true;
}

template <int kTaps>
__global__ void __launch_bounds__(kThreads) analyze_kernel(LevelRun run) {
  size_t i, line;
  if (!own_pair(run, &i, &line)) return;
  const bool finite = !run.finite || *run.finite != 0;
  const float *const v = run.band.p + line * run.band.line;
  const size_t size = 2 * run.half;
  float x = 0.0f, y = 0.0f;
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    size_t at = 2 * i + kTaps / 2 - (size_t)k;  // below zero it is very large
    if (at >= size) at = (2 * i + kTaps / 2 + size * kTaps - (size_t)k) % size;
    const float e = v[at * run.band.step];
    const float p = gf_mul(run.filter[k], e), q = gf_mul(high_tap<kTaps>(run.filter, k), e);
    x = k ? gf_add(x, p) : p;
    y = k ? gf_add(y, q) : q;
  }
  run.low.p[line * run.low.line + i * run.low.step] = bounded(x, finite);
  run.high.p[line * run.high.line + i * run.high.step] = bounded(y, finite);
}

template <int kTaps>
__global__ void __launch_bounds__(kThreads) synthesize_kernel(LevelRun run) {
  size_t i, line;
  if (!own_pair(run, &i, &line)) return;
  const bool finite = !run.finite || *run.finite != 0;
  const float *const a = run.a.p + line * run.a.line, *const d = run.d.p + line * run.d.line;
#pragma unroll
  for (int parity = 0; parity < 2; ++parity) {
    const int odd = (kTaps / 2 + parity) % 2;
    float total = 0.0f;
#pragma unroll
    for (int k = odd; k < kTaps; k += 2) {
      const size_t shift = (size_t)(ptrdiff_t)((parity - kTaps / 2 + k) / 2);
      size_t at = i + shift;
      if (at >= run.half) at = (i + run.half * kTaps + shift) % run.half;
      const float part = gf_add(gf_mul(run.filter[k], a[at * run.a.step]),
                                gf_mul(high_tap<kTaps>(run.filter, k), d[at * run.d.step]));
      total = k == odd ? part : gf_add(total, part);
    }
    run.out.p[line * run.out.line + (2 * i + (size_t)parity) * run.out.step] = bounded(total, finite);
  }
}

// ---- What is left over of a matrix ----------------------------------------------------------------------

// Rows of `width` elements, from one distance between rows to another.
__global__ void __launch_bounds__(kThreads)
    rows_kernel(Lines<const float> from, Lines<float> to, size_t rows, size_t width) {
  const size_t t = (size_t)blockIdx.x * kThreads + threadIdx.x;
  if (t < rows * width) to.p[t / width * to.line + t % width] = from.p[t / width * from.line + t % width];
}

size_t blocks_for(size_t threads) { return (threads + kThreads - 1) / kThreads; }

void analyze(const gf_wavelet &w, const LevelRun &run, gpuStream_t stream) {
  const size_t blocks = blocks_for(run.half * run.lines);
  if (w.taps == 2) GPU_LAUNCH(analyze_kernel<2>, blocks, kThreads, stream, run);
  if (w.taps == 4) GPU_LAUNCH(analyze_kernel<4>, blocks, kThreads, stream, run);
  if (w.taps == 8) GPU_LAUNCH(analyze_kernel<8>, blocks, kThreads, stream, run);
}

void synthesize(const gf_wavelet &w, const LevelRun &run, gpuStream_t stream) {
  const size_t blocks = blocks_for(run.half * run.lines);
  if (w.taps == 2) GPU_LAUNCH(synthesize_kernel<2>, blocks, kThreads, stream, run);
  if (w.taps == 4) GPU_LAUNCH(synthesize_kernel<4>, blocks, kThreads, stream, run);
  if (w.taps == 8) GPU_LAUNCH(synthesize_kernel<8>, blocks, kThreads, stream, run);
}

LevelRun level_run(const gf_wavelet &w, const int32_t *finite) {
  LevelRun run = {};
  memcpy(run.filter, w.filter, sizeof run.filter);
  run.finite = finite;
  run.lines = 1;
  return run;
}

// `rooms`: as of haar_line.
void any_line(const gf_wavelet &w, const float *x, float *out, const int32_t *finite, float *const *rooms,
              gpuStream_t stream) {
  LevelRun run = level_run(w, finite);
  const unsigned levels = w.levels;
  const float *band = x;
  for (unsigned turn = 1; turn <= levels; ++turn) {
    const unsigned l = w.inverse ? levels + 1 - turn : turn;
    float *const made = turn == levels ? out : rooms[(w.inverse ? l : l + 1) % 2];  // the larger one first
    run.half = w.width >> l;
    if (w.inverse) {
      run.a = {band, 0, 1};
      run.d = {x + run.half, 0, 1};
      run.out = {made, 0, 1};
      synthesize(w, run, stream);
    } else {
      run.band = {band, 0, 1};
      run.low = {made, 0, 1};
      run.high = {out + run.half, 0, 1};
      analyze(w, run, stream);
    }
    band = made;
  }
}

// Each level goes along the rows into two halves, then along the columns of both. `room`: for the two halves
// of the matrix, and behind them for the band that the next level takes.
void matrix_forward(const gf_wavelet &w, const float *x, float *out, const int32_t *finite, float *room,
                    gpuStream_t stream) {
  LevelRun run = level_run(w, finite);
  const size_t area = (size_t)(w.rows * w.width);
  float *const low = room, *const high = room + area / 2, *const square = room + area;
  size_t m = w.rows, width = w.width, at = area;
  run.band = {x, (size_t)w.columns, 1};
  for (unsigned l = 1; l <= w.levels; ++l, m /= 2, width /= 2) {
    const size_t half = width / 2, band = m / 2 * half;
    at -= 3 * band;
    run.across = false;
    run.lines = m;
    run.half = half;
    run.low = {low, half, 1};
    run.high = {high, half, 1};
    analyze(w, run, stream);
    float *const made = l == w.levels ? out : square;
    run.across = true;
    run.lines = half;
    run.half = m / 2;
    run.band = {low, 1, half};
    run.low = {made, 1, half};
    run.high = {out + at, 1, half};
    analyze(w, run, stream);
    run.band = {high, 1, half};
    run.low = {out + at + band, 1, half};
    run.high = {out + at + 2 * band, 1, half};
    analyze(w, run, stream);
    run.band = {made, half, 1};
  }
}

void matrix_inverse(const gf_wavelet &w, const float *x, float *out, const int32_t *finite, float *room,
                    gpuStream_t stream) {
  LevelRun run = level_run(w, finite);
  const size_t area = (size_t)(w.rows * w.width);
  float *const low = room, *const high = room + area / 2, *const square = room + area;
  size_t m = (size_t)w.rows >> w.levels, width = (size_t)w.width >> w.levels, at = m * width;
  const float *band = x;
  for (unsigned l = w.levels; l >= 1; --l, m *= 2, width *= 2) {
    const size_t size = m * width;
    run.across = true;
    run.lines = width;
    run.half = m;
    run.a = {band, 1, width};
    run.d = {x + at, 1, width};
    run.out = {low, 1, width};
    synthesize(w, run, stream);
    run.a = {x + at + size, 1, width};
    run.d = {x + at + 2 * size, 1, width};
    run.out = {high, 1, width};
    synthesize(w, run, stream);
    at += 3 * size;
    run.across = false;
    run.lines = 2 * m;
    run.half = width;
    run.a = {low, width, 1};
    run.d = {high, width, 1};
    run.out = l == 1 ? Lines<float>{out, (size_t)w.columns, 1} : Lines<float>{square, 2 * width, 1};
    synthesize(w, run, stream);
    band = square;
  }
}

// The last columns, then the last rows, which lie behind the coefficients.
int copy_rest(const gf_wavelet &w, const float *x, float *out, gpuStream_t stream) {
  const size_t n = (size_t)w.n, columns = (size_t)w.columns, width = (size_t)w.width, rows = (size_t)w.rows;
  size_t begin = width;  // of what is as it was, at the same place
  if (rows) {
    begin = rows * columns;
    const size_t right = columns - width, area = rows * width;
    const Lines<const float> from =
        w.inverse ? Lines<const float>{x + area, right, 1} : Lines<const float>{x + width, columns, 1};
    const Lines<float> to =
        w.inverse ? Lines<float>{out + width, columns, 1} : Lines<float>{out + area, right, 1};
    if (right) GPU_LAUNCH(rows_kernel, blocks_for(rows * right), kThreads, stream, from, to, rows, right);
  }
  return n > begin
             ? copy(out + begin, x + begin, (n - begin) * sizeof(float), GF_GPU_WITHIN, (void *)stream, 0)
             : GF_GPU_OK;
}

bool possible(const gf_wavelet &w, const float *x, const float *out) {
  if ((w.taps != 2 && w.taps != 4 && w.taps != 8) || w.levels < 1 || w.levels > kMostLevels) return false;
  const uint64_t whole = ((uint64_t)1 << w.levels) - 1;
  if ((w.width & whole) || (w.rows & whole) || (x < out + w.n && out < x + w.n)) return false;
  if (!w.rows) return w.width <= w.n;
  return w.width && w.width <= w.columns && w.n % w.columns == 0 && w.rows <= w.n / w.columns;
}

}  // namespace

size_t wavelet_scratch_bytes(size_t n) { return (n + n / 4) * sizeof(float); }

int wavelet(const gf_wavelet *run, const float *x, float *out, const int32_t *finite, void *scratch,
            size_t scratch_size, void *stream_) {
  const gf_wavelet &w = *run;
  const gpuStream_t stream = (gpuStream_t)stream_;
  if (!possible(w, x, out)) return GF_GPU_BAD_ARGUMENT;
  if (scratch_size < wavelet_scratch_bytes((size_t)w.n) || (uintptr_t)scratch % GF_GPU_ALIGNMENT)
    return GF_GPU_SCRATCH;
  float *const room = (float *)scratch;
  float *const rooms[2] = {room, room + w.width / 2};
  if (w.rows) {
    (w.inverse ? matrix_inverse : matrix_forward)(w, x, out, finite, room, stream);
  } else if (w.width) {
    (w.taps == 2 ? haar_line : any_line)(w, x, out, finite, rooms, stream);
  }
  const int error = copy_rest(w, x, out, stream);
  return error ? error : last_error();
}

}  // namespace gradflow_gpu
