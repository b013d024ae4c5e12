// sign1 on a GPU: a warp takes a block of the codec, 32 elements at a time, one a lane, which is a lane of
// the sum of magnitudes, too. Bits are gathered by ballots. Where a block's bits begin is known by a scan in
// the same pass, since a block without zeros has half as many, and one of zeros none.
#include "codecs.cuh"
#include "library.h"
#include "memory.cuh"
#include "scan.cuh"

namespace gradflow_gpu {
namespace {

static_assert(GF_SIGN1_LANES == kWarp, "a lane of the sum for each lane of a warp");

constexpr unsigned kSignThreads = kTileWarps * kWarp;
constexpr unsigned kHeld = 8;  // words of a block whose elements stay in registers: all, of one of 256
constexpr double kLargest = 1.7976931348623157e308;

struct Run {
  const void *x;
  int dtype;
  float *residual;  // null: no error feedback
  size_t n, block, blocks;
  uint8_t *body;
  Sign1Scratch scratch;
};

// The block of a warp: elements `begin` to `end`, none where there are no more blocks.
struct Part {
  size_t number, begin, end;
  uint32_t bytes;  // of a bit for each element
};

GPU_FN Part part_of(uint64_t tile, size_t n, size_t block, size_t blocks) {
  Part p;
  p.number = tile * kTileWarps + threadIdx.x / kWarp;
  p.begin = p.number < blocks ? p.number * block : n;
  p.end = p.begin + block < n ? p.begin + block : n;
  p.bytes = (uint32_t)((p.end - p.begin + 7) / 8);
  return p;
}

// ---- Encoding -----------------------------------------------------------------------------------------

GPU_FN float element(const Run &run, size_t i, size_t end) {
  if (i >= end) return 0.0f;
  const float v = load_element(run.x, run.dtype, i);
  return run.residual ? gf_add_residual(v, run.residual[i]) : v;
}

struct Magnitudes {
  double sum;
  uint32_t count;  // of elements that are not zero
};

GPU_FN void look(float v, Magnitudes *m) {
  m->sum += (double)gf_float(gf_abs_bits(v));
  m->count += gf_abs_bits(v) != 0;
}

// `count` bytes of a word.
GPU_FN void store_word(uint8_t *p, uint32_t word, uint32_t count) {
  if (count >= 4) return store_u32(p, word);
  for (uint32_t i = 0; i < count; ++i) p[i] = (uint8_t)(word >> 8 * i);
}

// The bits of a block, and what they lose; `held` are its first elements. `mask` is null where none is zero.
GPU_FN void put_bits(const Run &run, const Part &p, const float *held, float scale, uint8_t *mask,
                     uint8_t *signs) {
  for (uint32_t first = 0; 4 * first < p.bytes; first += kHeld) {  // a word in each of the first lanes
    uint32_t sign_word = 0, mask_word = 0;
#pragma unroll
    for (unsigned k = 0; k < kHeld; ++k) {
      const size_t i = p.begin + (first + k) * kWarp + lane();
      const float v = first ? element(run, i, p.end) : held[k];
      const uint32_t nonzero = ballot(gf_abs_bits(v) != 0), negative = ballot(gf_bits(v) >> 31 != 0);
      if (lane() == k) {
        sign_word = negative & nonzero;
        mask_word = nonzero;
      }
      if (run.residual && i < p.end)
        run.residual[i] = gf_sub(v, gf_abs_bits(v) ? gf_sign1_value(v, scale) : 0.0f);
    }
    const uint32_t at = 4 * (first + lane());
    if (lane() >= kHeld || at >= p.bytes) continue;
    store_word(signs + at, sign_word, p.bytes - at);
    if (mask) store_word(mask + at, mask_word, p.bytes - at);
  }
}

__global__ void __launch_bounds__(kSignThreads) encode_kernel(Run run) {
  const uint64_t tile = next_tile(run.scratch.work);
  const Part p = part_of(tile, run.n, run.block, run.blocks);
  float held[kHeld];
  Magnitudes m = {0.0, 0};
#pragma unroll
  for (unsigned k = 0; k < kHeld; ++k) {
    held[k] = element(run, p.begin + k * kWarp + lane(), p.end);
    look(held[k], &m);
  }
  for (size_t i = p.begin + kHeld * kWarp + lane(); i < p.end; i += kWarp) look(element(run, i, p.end), &m);
  m.sum = sum_of_warp(m.sum);
  m.count = sum_of_warp(m.count);
  const bool finite = m.sum <= kLargest, coded = finite && m.count;
  const bool masked = coded && m.count < p.end - p.begin;
  const float scale = coded ? gf_sign1_scale(m.sum, m.count) : 0.0f;
  uint64_t total;
  const uint64_t at =
      place_in_scan(run.scratch.tiles, tile, coded ? p.bytes << (masked ? 1 : 0) : 0u, &total);
  const uint64_t table = 4 * run.blocks;
  if (tile + 1 == gridDim.x && threadIdx.x == 0) run.scratch.work->body = table + total;
  if (p.begin >= p.end) return;
  if (lane() == 0) {
    const uint32_t entry = gf_bits(scale) | (masked ? GF_SIGN1_MASKED : 0u);
    store_u32(run.body + 4 * p.number, finite ? entry : GF_CANONICAL_NAN);
    if (!finite) atomicOr(&run.scratch.work->found, (uint32_t)kSawNonfinite);
  }
  if (coded) {
    uint8_t *const bits = run.body + table + at;
    put_bits(run, p, held, scale, masked ? bits : nullptr, masked ? bits + p.bytes : bits);
  } else if (finite && run.residual) {
    for (size_t i = p.begin + lane(); i < p.end; i += kWarp) run.residual[i] = 0.0f;
  }
}

// ---- Checking and decoding ------------------------------------------------------------------------------

// Bits for each element of a block with this entry in the table.
GPU_FN uint32_t parts_of(uint32_t entry) {
  if (entry == 0 || entry == GF_CANONICAL_NAN) return 0;
  return entry & GF_SIGN1_MASKED ? 2 : 1;
}

// Up to four bytes.
GPU_FN uint32_t load_word(const uint8_t *p, uint32_t count) {
  if (count >= 4) return load_u32(p);
  uint32_t word = 0;
  for (uint32_t i = 0; i < count; ++i) word |= (uint32_t)p[i] << 8 * i;
  return word;
}

// Whether an encoder can have made these bits of a block: all lanes get the answer.
GPU_FN bool bits_valid(const Part &p, const uint8_t *bits, bool masked) {
  const uint8_t *const signs = bits + (masked ? p.bytes : 0);
  uint32_t wrong = 0, some = 0, missing = 0;
  for (uint32_t at = 4 * lane(); at < p.bytes; at += 4 * kWarp) {
    const size_t left = p.end - p.begin - 8 * (size_t)at;
    const uint32_t full = left < 32 ? (1u << left) - 1u : ~0u;
    const uint32_t mask = masked ? load_word(bits + at, p.bytes - at) : full;
    wrong |= (mask & ~full) | (load_word(signs + at, p.bytes - at) & ~mask);
    some |= mask;
    missing |= full & ~mask;
  }
  if (ballot(wrong != 0)) return false;
  const uint32_t coded = ballot(some != 0), zeros = ballot(missing != 0);
  return !masked || (coded && zeros);
}

struct Payload {
  const uint8_t *body;
  float *out;
  size_t n, block, blocks;
  unsigned block_log2;
  int add;
  const int32_t *status;
  Sign1Scratch scratch;
};

__global__ void __launch_bounds__(kSignThreads) check_kernel(Payload run) {
  if (*run.status != GF_WIRE_OK) return;
  const uint64_t tile = next_tile(run.scratch.work), table = 4 * run.blocks;
  const uint64_t data = run.scratch.work->body - table;  // open_payload has seen that there are as many
  const Part p = part_of(tile, run.n, run.block, run.blocks);
  uint32_t entry = 0, found = 0;
  if (p.begin < p.end) {
    entry = load_u32(run.body + 4 * p.number);
    if (entry == GF_CANONICAL_NAN) {
      found = kSawNonfinite;
    } else if ((entry & 0x7fffffffu) >= GF_INF_BITS || entry == GF_SIGN1_MASKED) {
      found = kBadContent;
    }
  }
  const uint32_t own = parts_of(entry) * p.bytes;
  uint64_t total;
  const uint64_t at = place_in_scan(run.scratch.tiles, tile, own, &total);
  if (lane() == 0 && p.begin < p.end) run.scratch.places[p.number] = at;
  if (tile + 1 == gridDim.x && total != data) found |= kBadContent;
  if (own && at + own <= data && !bits_valid(p, run.body + table + at, entry & GF_SIGN1_MASKED))
    found |= kBadContent;
  if (found && lane() == 0) atomicOr(&run.scratch.work->found, found);
}

// A thread has eight elements, whose bits are a byte.
__global__ void __launch_bounds__(kSignThreads) decode_kernel(Payload run) {
  const size_t i = ((size_t)blockIdx.x * kSignThreads + threadIdx.x) * kEach;
  if (i >= run.n || *run.status != GF_WIRE_OK) return;
  const size_t number = i >> run.block_log2, begin = number << run.block_log2;
  const size_t size = begin + run.block < run.n ? run.block : run.n - begin;
  const uint32_t entry = load_u32(run.body + 4 * number), parts = parts_of(entry);
  const uint32_t magnitude = entry & 0x7fffffffu;
  uint32_t mask = 0, signs = 0;
  if (parts) {
    const uint8_t *const bits = run.body + 4 * run.blocks + run.scratch.places[number] + (i - begin) / 8;
    mask = parts == 2 ? bits[0] : 255u;
    signs = bits[parts == 2 ? (size + 7) / 8 : 0];
  }
  float out[kEach];
  if (run.add) load_floats(run.out, i, run.n, out);
  for (unsigned k = 0; k < kEach; ++k) {
    const float v = mask >> k & 1u ? gf_float(magnitude | (signs >> k & 1u) << 31) : 0.0f;
    out[k] = run.add ? host_add(out[k], v) : v;
    // Whatever is there, the sum is NaN; always the canonical one.
    if (entry == GF_CANONICAL_NAN) out[k] = gf_float(GF_CANONICAL_NAN);
  }
  store_floats(run.out, i, run.n, out);
}

size_t tiles_for(size_t blocks) { return (blocks + kTileWarps - 1) / kTileWarps; }

size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t blocks_in(const gf_codec_spec &spec, size_t n) { return gradflow::sign1_table_bytes(spec, n) / 4; }

Payload payload_of(const gf_codec_spec &spec, const uint8_t *in, size_t n, const int32_t *status,
                   const Sign1Scratch &scratch) {
  Payload run = {};
  run.body = in + sizeof(Header);
  run.n = n;
  run.block = spec.block;
  run.blocks = blocks_in(spec, n);
  run.block_log2 = gradflow::log2_of(spec.block);
  run.status = status;
  run.scratch = scratch;
  return run;
}

}  // namespace

Sign1Scratch sign1_scratch(void *scratch, const gf_codec_spec &spec, size_t n) {
  const size_t blocks = blocks_in(spec, n);
  uint8_t *at = (uint8_t *)scratch;
  Sign1Scratch s = {};
  s.work = (Work *)at;
  at += kWorkBytes;
  s.tiles = (uint64_t *)at;
  at += padded(tiles_for(blocks) * sizeof(uint64_t));
  s.places = (uint64_t *)at;
  at += padded(blocks * sizeof(uint64_t));
  s.bytes = (size_t)(at - (uint8_t *)scratch);
  return s;
}

void sign1_encode(const gf_codec_spec &spec, int dtype, const void *x, float *residual, size_t n,
                  uint8_t *body, const Sign1Scratch &scratch, gpuStream_t stream) {
  Run run = {};
  run.x = x;
  run.dtype = dtype;
  run.residual = residual;
  run.n = n;
  run.block = spec.block;
  run.blocks = blocks_in(spec, n);
  run.body = body;
  run.scratch = scratch;
  if (n == 0) return;  // the body is empty, as the Work says that was cleared
  const size_t tiles = tiles_for(run.blocks);
  (void)fill(scratch.tiles, 0, tiles * sizeof(uint64_t), stream);
  GPU_LAUNCH(encode_kernel, tiles, kSignThreads, stream, run);
}

void sign1_check(const gf_codec_spec &spec, const uint8_t *in, size_t n, const int32_t *status,
                 const Sign1Scratch &scratch, gpuStream_t stream) {
  if (n == 0) return;
  const Payload run = payload_of(spec, in, n, status, scratch);
  const size_t tiles = tiles_for(run.blocks);
  (void)fill(scratch.tiles, 0, tiles * sizeof(uint64_t), stream);
  GPU_LAUNCH(check_kernel, tiles, kSignThreads, stream, run);
}

void sign1_decode(const gf_codec_spec &spec, const uint8_t *in, float *out, size_t n, int add,
                  const int32_t *status, const Sign1Scratch &scratch, gpuStream_t stream) {
  if (n == 0) return;
  Payload run = payload_of(spec, in, n, status, scratch);
  run.out = out;
  run.add = add;
  constexpr size_t kSpan = kSignThreads * kEach;
  GPU_LAUNCH(decode_kernel, (n + kSpan - 1) / kSpan, kSignThreads, stream, run);
}

}  // namespace gradflow_gpu
