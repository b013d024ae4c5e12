#include "library.h"

#include "deadzone.cuh"

namespace gradflow_gpu {
namespace {

// Bits into shared memory: all lanes count, the first one writes.
class BitWriter {
 public:
  __device__ explicit BitWriter(uint32_t *words) : words_(words) {}
  // The lowest `count` bits, up to 32; the others must be zero.
  __device__ void put(uint32_t bits, unsigned count) {
    held_ |= (uint64_t)bits << filled_;
    filled_ += count;
    if (filled_ < 32) return;
    if (lane() == 0) words_[done_] = (uint32_t)held_;
    ++done_;
    held_ >>= 32;
    filled_ -= 32;
  }
  // Fills the last byte up with zeros; returns the bytes written.
  __device__ uint32_t finish() {
    if (filled_ && lane() == 0) words_[done_] = (uint32_t)held_;
    return 4 * done_ + (filled_ + 7) / 8;
  }

 private:
  uint32_t *words_;
  uint64_t held_ = 0;
  unsigned filled_ = 0, done_ = 0;
};

// A block that has codes. `q` and the sign are this lane's.
GPU_FN void put_block(BitWriter *w, uint32_t shift, uint32_t coded, uint32_t negative, uint32_t q) {
  const unsigned count = count_bits(coded);
  const uint32_t magnitude = q ? q - 1 : 0;
  const uint32_t sum = sum_of_warp(magnitude);
  // From here on lane j stands for the block's j-th code.
  const bool mine = lane() < count;
  const unsigned from = mine ? place_of(coded, lane()) : 0;
  if (shift) w->put(kDzShifted | shift << 4, 11);
  const bool places = count <= kDzMostPlaces;
  w->put((places ? count : 0u) | (sum ? kDzLarge : 0u), 4);
  const unsigned k = sum ? low_bits(sum, count) : 0;
  if (sum) {
    if (k < 3) {
      w->put(k, 2);
    } else {
      w->put(3u | k << 2, 7);
    }
  }
  if (places) {
    uint32_t packed = 0;
    unsigned at = 0;
    for (uint32_t left = coded; left; left &= left - 1, at += 5) packed |= lowest_bit(left) << at;
    w->put(packed, at);
  } else {
    w->put(coded, 32);
  }
  w->put(ballot(mine && (negative >> from & 1u)), count);
  if (!sum) return;
  const uint32_t m = shuffle(magnitude, from);
  for (unsigned b = 0; b < k; ++b) w->put(ballot(mine && (m >> b & 1u)), count);
  // One bit for each code that has not ended: whether it goes on.
  uint32_t alive = first_bits(count);
  for (uint32_t j = 1; alive; ++j) {
    const uint32_t on = ballot((alive >> lane() & 1u) && m >> k >= j);
    const unsigned left = count_bits(alive);
    w->put(ballot(lane() < left && (on >> place_of(alive, lane() < left ? lane() : 0) & 1u)), left);
    alive = on;
  }
}

struct EncodeRun {
  const void *x;
  float *residual;  // null: no error feedback
  size_t n;
  int dtype;
  float unit, offset;
  uint32_t code_bits;
  size_t segments, groups;
  uint8_t *body;
  DzScratch scratch;
};

// One block of 32, an element a lane; whether it has anything to send.
GPU_FN bool encode_block(const EncodeRun &run, float step, const gf_dz_block &plain, size_t i, bool valid,
                         float v, BitWriter *w, bool *nonfinite) {
  const uint32_t m = max_of_warp(gf_abs_bits(v)), most = 1u << run.code_bits;
  if (m >= GF_INF_BITS) {
    *nonfinite = true;
    w->put(kDzNonfinite, 4);
    return true;
  }
  uint32_t shift = 0;
  gf_dz_block p = plain;
  if (m && step > 0.0f) {
    shift = gf_dz_shift(m, step, run.code_bits);
    if (shift) p = gf_dz_params(step, shift, run.offset);
  }
  const bool some = m && step > 0.0f && gf_dz_code(gf_float(m), p, most);
  const uint32_t q = some ? gf_dz_code(v, p, most) : 0u, sign = gf_bits(v) >> 31;
  if (run.residual && valid) run.residual[i] = q ? gf_sub(v, gf_dz_value(q, sign, p.step)) : v;
  const uint32_t coded = ballot(q != 0), negative = ballot(sign != 0);
  if (!coded) return false;
  put_block(w, shift, coded, negative, q);
  return true;
}

constexpr unsigned kAhead = 4;  // blocks whose elements are read before the first of them is encoded

GPU_FN uint32_t encode_group(const EncodeRun &run, const DzGroup &group, uint32_t *words, bool *nonfinite) {
  const float step = run.unit != 0.0f && group.step > 0.0f ? run.unit : group.step;
  gf_dz_block plain = {};
  if (step > 0.0f) plain = gf_dz_params(step, 0, run.offset);
  BitWriter w(words + 1);
  uint32_t filled = 0;
  for (unsigned block = 0; block < 32 && group.begin + block * GF_DZ_BLOCK < group.end; block += kAhead) {
    float v[kAhead];
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const size_t i = group.begin + (block + k) * GF_DZ_BLOCK + lane();
      v[k] = i < group.end ? load_element(run.x, run.dtype, i) : 0.0f;
      if (run.residual && i < group.end) v[k] = gf_add_residual(v[k], run.residual[i]);
    }
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const size_t at = group.begin + (block + k) * GF_DZ_BLOCK, i = at + lane();
      if (at >= group.end) break;
      const bool some = encode_block(run, step, plain, i, i < group.end, v[k], &w, nonfinite);
      filled |= (some ? 1u : 0u) << (block + k);
    }
  }
  const uint32_t bytes = filled ? 4 + w.finish() : 0;
  if (lane() == 0) words[0] = filled;
  return bytes;  // others read the words behind a barrier of the whole block
}

// From words in shared memory to any address.
GPU_FN void copy_out(uint8_t *out, const uint32_t *words, uint32_t bytes) {
  const uint32_t head = (uint32_t)(-(uintptr_t)out & 3), skip = head < bytes ? head : bytes;
  const uint32_t whole = (bytes - skip) / 4, shift = 8 * (skip & 3);
  if (lane() < skip) out[lane()] = (uint8_t)(words[0] >> 8 * lane());
  for (uint32_t w = lane(); w < whole; w += kWarp) {
    const uint32_t v = shift ? words[w] >> shift | words[w + 1] << (32 - shift) : words[w];
    *(uint32_t *)(out + skip + 4 * w) = v;
  }
  const uint32_t at = skip + 4 * whole + lane();
  if (at < bytes) out[at] = (uint8_t)(words[at / 4] >> 8 * (at % 4));
}

__global__ void __launch_bounds__(kDzThreads) encode_kernel(EncodeRun run) {
  __shared__ uint32_t words[kDzWarps][kDzGroupWords];
  const unsigned warp = threadIdx.x / kWarp;
  const uint64_t tile = next_tile(run.scratch.work), g = tile * kDzWarps + warp;
  uint32_t bytes = 0;
  bool nonfinite = false;
  if (g < run.groups)
    bytes =
        encode_group(run, group_at(run.scratch.segments, run.segments, g, run.n), words[warp], &nonfinite);
  if (nonfinite && lane() == 0) atomicOr(&run.scratch.work->found, (uint32_t)kSawNonfinite);
  uint64_t total;
  const uint64_t at = place_in_scan(run.scratch.tiles, tile, bytes, &total);
  uint8_t *const sizes = run.body + 4 + run.segments * gradflow::kDzSegmentBytes;
  const uint64_t front = 4 + run.segments * gradflow::kDzSegmentBytes + 2 * run.groups;
  if (g < run.groups) {
    if (lane() < 2) sizes[2 * g + lane()] = (uint8_t)(bytes >> 8 * lane());
    copy_out(run.body + front + at, words[warp], bytes);
  }
  if (tile + 1 == gridDim.x && threadIdx.x == 0) run.scratch.work->body = front + total;
}

// Without groups: only the number of segments.
__global__ void empty_kernel(Work *work) {
  if (threadIdx.x == 0) work->body = 4;
}

// ---- Segments -----------------------------------------------------------------------------------------

constexpr unsigned kPut =
    128;  // segments of a launch: as arguments, so that they need no memory of their own

struct PutRun {
  DzSegment segments[kPut];
  unsigned count;
  uint32_t all;  // in the payload
  size_t first;
  uint8_t *body;  // or null
  DzSegment *table;
};

__global__ void put_kernel(PutRun run) {
  const unsigned i = threadIdx.x;
  if (run.body && run.first == 0 && i == 0) store_u32(run.body, run.all);
  if (i >= run.count) return;
  const DzSegment s = run.segments[i];
  run.table[run.first + i] = s;
  if (!run.body) return;
  uint8_t *const entry = run.body + 4 + (run.first + i) * gradflow::kDzSegmentBytes;
  store_u32(entry, s.blocks);
  store_u32(entry + 4, gf_bits(s.step));
}

__global__ void measure_kernel(const double *energy, double multiple, uint64_t n, uint8_t *body,
                               DzSegment *table) {
  if (threadIdx.x) return;
  const DzSegment s = {(uint32_t)gradflow::dz_blocks(n), gf_dz_step(multiple, energy[0], (double)n), 0, 0};
  table[0] = s;
  store_u32(body, 1);
  store_u32(body + 4, s.blocks);
  store_u32(body + 8, gf_bits(s.step));
}

size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

DzScratch dz_scratch(void *scratch, size_t n) {
  const size_t blocks = gradflow::dz_blocks(n);
  uint8_t *at = (uint8_t *)scratch;
  DzScratch s = {};
  // Each segment may have its own groups, and each block may be a segment.
  s.tile_count = (blocks + kDzWarps - 1) / kDzWarps;
  s.work = (Work *)at;
  at += kWorkBytes;
  s.tiles = (uint64_t *)at;
  at += padded(s.tile_count * sizeof(uint64_t));
  s.segments = (DzSegment *)at;
  at += padded(blocks * sizeof(DzSegment));
  s.chunks = (double *)at;
  at += padded((energy_chunks(n) + 2) * sizeof(double));
  s.bytes = (size_t)(at - (uint8_t *)scratch);
  return s;
}

void dz_put_segments(const gf_segment *segments, size_t count, uint8_t *body, const DzScratch &scratch,
                     gpuStream_t stream) {
  PutRun run = {};
  run.body = body;
  run.table = scratch.segments;
  run.all = (uint32_t)count;
  uint64_t begin = 0;
  uint32_t block = 0, group = 0;
  for (size_t first = 0; first < count || (first == 0 && body); first += kPut) {
    run.first = first;
    run.count = count - first < kPut ? (unsigned)(count - first) : kPut;
    for (unsigned i = 0; i < run.count; ++i) {
      const gf_segment &s = segments[first + i];
      const uint32_t blocks = (uint32_t)gradflow::dz_blocks((size_t)(s.end - begin));
      run.segments[i] = {blocks, s.step, block, group};
      block += blocks;
      group += (uint32_t)gradflow::dz_groups((size_t)(s.end - begin));
      begin = s.end;
    }
    GPU_LAUNCH(put_kernel, 1, kPut, stream, run);
  }
}

void dz_measure(const gf_codec_spec &spec, const void *x, int dtype, size_t n, uint8_t *body,
                const DzScratch &scratch, gpuStream_t stream) {
  if (n == 0) return dz_put_segments(nullptr, 0, body, scratch, stream);
  double *const energy = scratch.chunks + energy_chunks(n);
  energies(x, dtype, nullptr, n, energy, scratch.chunks, stream);
  GPU_LAUNCH(measure_kernel, 1, kWarp, stream, energy, gradflow::dz_multiple_of(spec), (uint64_t)n, body,
             scratch.segments);
}

void dz_encode(const gf_codec_spec &spec, size_t segments, size_t groups, int dtype, const void *x,
               float *residual, size_t n, float unit, uint8_t *body, const DzScratch &scratch,
               gpuStream_t stream) {
  if (groups == 0) {
    GPU_LAUNCH(empty_kernel, 1, kWarp, stream, scratch.work);
    return;
  }
  EncodeRun run = {};
  run.x = x;
  run.residual = residual;
  run.n = n;
  run.dtype = dtype;
  run.unit = unit;
  run.offset = unit != 0.0f ? 0.5f : gradflow::dz_offset_of(spec);
  run.code_bits = unit != 0.0f ? GF_DZ_SUM_BITS : GF_DZ_CODE_BITS;
  run.segments = segments;
  run.groups = groups;
  run.body = body;
  run.scratch = scratch;
  const size_t tiles = (groups + kDzWarps - 1) / kDzWarps;
  (void)fill(scratch.tiles, 0, tiles * sizeof(uint64_t), stream);
  GPU_LAUNCH(encode_kernel, tiles, kDzThreads, stream, run);
}

}  // namespace gradflow_gpu
