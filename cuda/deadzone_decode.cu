#include "library.h"

#include "deadzone.cuh"

namespace gradflow_gpu {
namespace {

constexpr unsigned kOpenThreads = 256;

// ---- The tables ---------------------------------------------------------------------------------------

struct OpenRun {
  const uint8_t *in;
  size_t n, expected;
  int compare;
  const int32_t *status;
  DzScratch scratch;
};

struct Before {
  uint64_t blocks, groups;
};

// Sums over the threads before this one; `all` gets those over all threads.
GPU_FN Before scan_of_block(Before mine, Before *all) {
  __shared__ uint64_t sums[2][kOpenThreads / kWarp];
  const unsigned warp = threadIdx.x / kWarp;
  Before up = mine;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const unsigned from = lane() >= step ? lane() - step : lane();
    const uint64_t blocks = shuffle(up.blocks, from), groups = shuffle(up.groups, from);
    if (lane() >= step) {
      up.blocks += blocks;
      up.groups += groups;
    }
  }
  __syncthreads();
  if (lane() == kWarp - 1) {
    sums[0][warp] = up.blocks;
    sums[1][warp] = up.groups;
  }
  __syncthreads();
  Before before = {up.blocks - mine.blocks, up.groups - mine.groups};
  *all = Before{0, 0};
  for (unsigned w = 0; w < kOpenThreads / kWarp; ++w) {
    if (w < warp) {
      before.blocks += sums[0][w];
      before.groups += sums[1][w];
    }
    all->blocks += sums[0][w];
    all->groups += sums[1][w];
  }
  return before;
}

__global__ void __launch_bounds__(kOpenThreads) tables_kernel(OpenRun run) {
  if (*run.status != GF_WIRE_OK) return;
  Work *const work = run.scratch.work;
  const uint8_t *const body = run.in + sizeof(Header);
  const uint64_t bytes = work->body, count = load_u32(body), blocks = gradflow::dz_blocks(run.n);
  uint32_t found = 0;
  Before total = {0, 0};
  if (count > blocks || (count == 0) != (run.n == 0) || 4 + count * gradflow::kDzSegmentBytes > bytes) {
    found = kBadTables;
  } else {
    if (run.compare && count != run.expected) found = kOtherSegments;
    for (uint64_t first = 0; first < count; first += kOpenThreads) {
      const uint64_t i = first + threadIdx.x;
      Before own = {0, 0}, all;
      uint32_t step = 0;
      if (i < count) {
        const uint8_t *const entry = body + 4 + i * gradflow::kDzSegmentBytes;
        own.blocks = load_u32(entry);
        own.groups = (own.blocks + 31) / 32;
        step = load_u32(entry + 4);
        if (own.blocks == 0 || step >= GF_INF_BITS) found |= kBadTables;
        if (run.compare && i < run.expected &&
            (run.scratch.segments[i].blocks != own.blocks || gf_bits(run.scratch.segments[i].step) != step))
          found |= kOtherSegments;
      }
      const Before before = scan_of_block(own, &all);
      const DzSegment s = {(uint32_t)own.blocks, gf_float(step), (uint32_t)(total.blocks + before.blocks),
                           (uint32_t)(total.groups + before.groups)};
      if (i < count) run.scratch.segments[i] = s;
      total.blocks += all.blocks;
      total.groups += all.groups;
    }
    const uint64_t front = 4 + count * gradflow::kDzSegmentBytes;
    const bool entropy = run.in[5] & gradflow::kFlagEntropy;
    if (total.blocks != blocks) {
      found |= kBadTables;
    } else if (entropy) {
      found |= kEntropyCoded;  // what follows is not for us
    } else if (front + 2 * total.groups > bytes || (total.groups == 0 && front != bytes)) {
      found |= kBadTables;
    } else if (threadIdx.x == 0) {
      work->segments = (uint32_t)count;
      work->data = bytes - front - 2 * total.groups;
      work->groups = total.groups;
    }
  }
  if (found) atomicOr(&work->found, found);
}

// ---- Blocks -------------------------------------------------------------------------------------------

// Reads the same bits in all lanes. Never beyond its bytes: what lies there counts as zeros.
class BitReader {
 public:
  __device__ BitReader(const uint8_t *in, uint32_t bytes) : in_(in), bytes_(bytes) {}
  // Up to 32 bits.
  __device__ uint32_t get(unsigned count) {
    const uint32_t byte = at_ / 8;
    uint64_t word = 0;
    for (unsigned i = 0; i < 5; ++i)
      if (byte + i < bytes_) word |= (uint64_t)in_[byte + i] << 8 * i;
    word >>= at_ % 8;
    at_ += count;
    return (uint32_t)word & first_bits(count);
  }
  __device__ bool overrun() const { return at_ > 8 * bytes_; }
  // Whether nothing but the filling of the last byte is left, and that is zero.
  __device__ bool at_end() {
    const uint32_t left = 8 * bytes_ - at_;
    return !overrun() && left < 8 && get(left) == 0;
  }

 private:
  const uint8_t *in_;
  uint32_t bytes_, at_ = 0;
};

struct Parsed {
  uint32_t coded, negative, shift;
  bool nonfinite;
  uint32_t magnitude;  // of this lane's element: its code, less one
};

// This lane's bit of `bits`, which belong to the elements of `mask`, side by side.
GPU_FN uint32_t own_bit(uint32_t bits, uint32_t mask) {
  return mask >> lane() & 1u ? bits >> count_bits(mask & lanes_below()) & 1u : 0u;
}

// Reads one block; false if no encoder writes it so.
GPU_FN bool parse_block(BitReader *r, Parsed *p) {
  *p = Parsed{0, 0, 0, false, 0};
  uint32_t form = r->get(4);
  if (form == kDzNonfinite) {
    p->nonfinite = true;
    return true;
  }
  if (form == kDzShifted) {
    p->shift = r->get(7);
    if (p->shift == 0 || p->shift > GF_DZ_MAX_SHIFT) return false;
    form = r->get(4);
  }
  unsigned count = form & 7u, k = 0;
  if (count > kDzMostPlaces) return false;
  const bool large = form & kDzLarge;
  if (large) {
    k = r->get(2);
    if (k == 3) {
      k = r->get(5);
      if (k < 3 || k >= GF_DZ_SUM_BITS) return false;
    }
  }
  if (count) {
    const uint32_t packed = r->get(5 * count);
    for (unsigned i = 0; i < count; ++i) {
      const uint32_t place = 1u << (packed >> 5 * i & 31u);
      if (place <= p->coded) return false;  // not in ascending order
      p->coded |= place;
    }
  } else {
    p->coded = r->get(32);
    count = count_bits(p->coded);
    if (count <= kDzMostPlaces) return false;
  }
  const uint32_t signs = r->get(count);
  p->negative = own_bit(signs, p->coded);
  if (!large) return true;
  uint64_t sum = 0;
  for (unsigned b = 0; b < k; ++b) {
    const uint32_t bits = r->get(count);
    sum += (uint64_t)count_bits(bits) << b;
    p->magnitude |= own_bit(bits, p->coded) << b;
  }
  uint32_t alive = p->coded;
  for (uint64_t j = 1; alive; ++j) {
    const uint32_t bits = r->get(count_bits(alive)), own = own_bit(bits, alive);
    alive = ballot(own != 0);
    sum += (uint64_t)count_bits(bits) << k;
    p->magnitude += own << k;
    if (alive && j << k > 1u << GF_DZ_SUM_BITS) return false;
  }
  return sum > 0 && sum < 1ull << 32 && low_bits((uint32_t)sum, count) == k;
}

GPU_FN bool group_valid(const DzGroup &group, const uint8_t *in, uint32_t bytes, bool *nonfinite) {
  if (bytes < 5) return false;
  const unsigned blocks = (unsigned)gradflow::dz_blocks(group.end - group.begin);
  const uint32_t filled = load_u32(in);
  if (filled == 0 || filled & ~first_bits(blocks)) return false;
  BitReader r(in + 4, bytes - 4);
  for (uint32_t rest = filled; rest; rest &= rest - 1) {
    const size_t in_block = group.end - group.begin - lowest_bit(rest) * GF_DZ_BLOCK;
    Parsed p;
    if (!parse_block(&r, &p) || r.overrun()) return false;
    *nonfinite = *nonfinite || p.nonfinite;
    if (p.nonfinite) continue;
    if (in_block < GF_DZ_BLOCK && p.coded >> in_block) return false;
    if (group.step == 0.0f) return false;
    if (p.shift && gf_abs_bits(gf_mul(group.step, gf_power_of_two((int32_t)p.shift))) > GF_MAX_BITS)
      return false;
  }
  return r.at_end();
}

__global__ void __launch_bounds__(kDzThreads)
    check_kernel(const uint8_t *in, size_t n, const int32_t *status, DzScratch scratch) {
  if (*status != GF_WIRE_OK) return;
  Work *const work = scratch.work;
  const uint64_t groups = work->groups, tiles = (groups + kDzWarps - 1) / kDzWarps;
  const uint8_t *const sizes = in + sizeof(Header) + 4 + work->segments * gradflow::kDzSegmentBytes;
  const uint8_t *const data = sizes + 2 * groups;
  for (;;) {
    const uint64_t tile = next_tile(work), g = tile * kDzWarps + threadIdx.x / kWarp;
    if (tile >= tiles) return;
    const uint32_t bytes = g < groups ? load_u16(sizes + 2 * g) : 0;
    uint64_t total;
    const uint64_t at = place_in_scan(scratch.tiles, tile, bytes, &total);
    uint32_t found = 0;
    if (at + bytes > work->data || (tile + 1 == tiles && total != work->data)) {
      found = kBadTables;
    } else if (bytes) {
      bool nonfinite = false;
      const DzGroup group = group_at(scratch.segments, work->segments, g, n);
      if (!group_valid(group, data + at, bytes, &nonfinite)) found |= kBadContent;
      if (nonfinite) found |= kSawNonfinite;
    }
    if (found && lane() == 0) atomicOr(&work->found, found);
  }
}

struct DecodeRun {
  const uint8_t *in;
  float *out;
  size_t n;
  float unit;
  int add;
  const int32_t *status;
  DzScratch scratch;
};

GPU_FN void decode_group(const DecodeRun &run, const DzGroup &group, const uint8_t *in, uint32_t bytes) {
  const float unit = run.unit != 0.0f && group.step > 0.0f ? run.unit : group.step;
  const uint32_t filled = bytes ? load_u32(in) : 0;
  BitReader r(in + 4, bytes ? bytes - 4 : 0);
  for (unsigned block = 0; block < 32 && group.begin + block * GF_DZ_BLOCK < group.end; ++block) {
    const size_t i = group.begin + block * GF_DZ_BLOCK + lane();
    if (!(filled >> block & 1u)) {
      if (!run.add && i < group.end) run.out[i] = 0.0f;
      continue;
    }
    Parsed p;
    (void)parse_block(&r, &p);
    if (i >= group.end) continue;
    if (p.nonfinite) {
      run.out[i] = gf_float(GF_CANONICAL_NAN);
    } else if (p.coded >> lane() & 1u) {
      const float step = gf_mul(unit, gf_power_of_two((int32_t)p.shift));
      const float v = gf_dz_value(p.magnitude + 1u, p.negative, step);
      run.out[i] = host_add(run.add ? run.out[i] : 0.0f, v);
    } else if (!run.add) {
      run.out[i] = 0.0f;
    }
  }
}

// The scan of the check is still there: a tile's word holds the bytes of all tiles up to it.
__global__ void __launch_bounds__(kDzThreads) decode_kernel(DecodeRun run) {
  if (*run.status != GF_WIRE_OK) return;
  const Work *const work = run.scratch.work;
  const uint64_t groups = work->groups, tiles = (groups + kDzWarps - 1) / kDzWarps;
  const uint8_t *const sizes = run.in + sizeof(Header) + 4 + work->segments * gradflow::kDzSegmentBytes;
  for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint64_t first = tile * kDzWarps, g = first + threadIdx.x / kWarp;
    if (g >= groups) continue;
    uint64_t at = tile ? run.scratch.tiles[tile - 1] >> 2 : 0;
    for (uint64_t i = first; i < g; ++i) at += load_u16(sizes + 2 * i);
    const DzGroup group = group_at(run.scratch.segments, work->segments, g, run.n);
    decode_group(run, group, sizes + 2 * groups + at, load_u16(sizes + 2 * g));
  }
}

// Blocks of threads for a number of groups that only the device knows: as many as there usually are, or
// fewer; they go on until all is done.
unsigned dz_grid(size_t n) {
  const size_t usual = (gradflow::dz_groups(n) + kDzWarps - 1) / kDzWarps;
  return usual < 1 ? 1u : (usual > 4096 ? 4096u : (unsigned)usual);
}

}  // namespace

void dz_check(const uint8_t *in, size_t n, const size_t *expected, int32_t *status, const DzScratch &scratch,
              gpuStream_t stream) {
  OpenRun run = {};
  run.in = in;
  run.n = n;
  run.compare = expected != nullptr;
  run.expected = expected ? *expected : 0;
  run.status = status;
  run.scratch = scratch;
  (void)fill(scratch.tiles, 0, scratch.tile_count * sizeof(uint64_t), stream);
  GPU_LAUNCH(tables_kernel, 1, kOpenThreads, stream, run);
  GPU_LAUNCH(check_kernel, dz_grid(n), kDzThreads, stream, in, n, status, scratch);
}

void dz_decode(const uint8_t *in, float *out, size_t n, float unit, int add, const int32_t *status,
               const DzScratch &scratch, gpuStream_t stream) {
  DecodeRun run = {};
  run.in = in;
  run.out = out;
  run.n = n;
  run.unit = unit;
  run.add = add;
  run.status = status;
  run.scratch = scratch;
  GPU_LAUNCH(decode_kernel, dz_grid(n), kDzThreads, stream, run);
}

}  // namespace gradflow_gpu
