#include "frame.cuh"

#include "crc.cuh"

namespace gradflow_gpu {
namespace {

__device__ const CrcTables kCrcTables;

// ---- What is wrong with a word of a body --------------------------------------------------------------

GPU_FN uint32_t look_at_scale(uint32_t u, const Regions &r) {
  if (r.scale_width == 4) {
    const bool nan = u == GF_CANONICAL_NAN;
    return (nan ? kSawNonfinite : 0u) | (nan || u < GF_INF_BITS ? 0u : kBadContent);
  }
  const uint32_t lowest = r.codec == gradflow::kFp16 ? GF_HALF_MIN_EXPONENT : GF_LOG4_MIN_EXPONENT;
  return (u == 255u ? kSawNonfinite : 0u) | (u == 0 || u >= lowest ? 0u : kBadContent);
}

// The most negative code is never written; under log4 that is a sign without a level.
GPU_FN uint32_t look_at_codes(uint32_t w, const Regions &r) {
  uint32_t bad = 0;
  if (r.code_bits == 8) {
    const uint32_t t = w ^ 0x80808080u;
    bad = (t - 0x01010101u) & ~t & 0x80808080u;
  } else if (r.code_bits == 4) {
    bad = w & 0x88888888u & ~(w << 1 | w << 2 | w << 3);
  } else if (r.code_bits == 2) {
    bad = w & 0xaaaaaaaau & ~(w << 1);
  }
  return bad ? kBadContent : 0u;
}

// A word at byte `at` of the body; beyond the body it holds zeros, with which nothing is wrong.
GPU_FN uint32_t look_at(uint32_t w, uint64_t at, const Regions &r) {
  if (r.scale_width == 4) return at < r.scale_bytes ? look_at_scale(w, r) : look_at_codes(w, r);
  uint32_t found = 0;
  if (at < r.scale_bytes) {
    const unsigned scales = r.scale_bytes - at < 4 ? (unsigned)(r.scale_bytes - at) : 4u;
    for (unsigned i = 0; i < scales; ++i) found |= look_at_scale(w >> 8 * i & 255u, r);
    w = scales < 4 ? w & ~0u << 8 * scales : 0u;
  }
  return found | look_at_codes(w, r);
}

// ---- Reading a body: its checksum, and what is wrong with it -------------------------------------------

GPU_FN uint32_t next_step(const uint32_t (*table)[256], uint32_t s) {
  return table[0][s & 255u] ^ table[1][s >> 8 & 255u] ^ table[2][s >> 16 & 255u] ^ table[3][s >> 24];
}

GPU_FN uint32_t xor_of_warp(uint32_t v) {
  for (unsigned mask = 16; mask; mask /= 2) v ^= shuffle_xor(v, mask);
  return v;
}

// Up to four bytes from `at` on; those outside of [from, to) count as zeros.
GPU_FN uint32_t load_between(const uint8_t *p, int64_t at, int64_t from, int64_t to) {
  uint32_t w = 0;
  for (int64_t i = at; i < at + 4; ++i)
    if (i >= from && i < to) w |= (uint32_t)p[i] << 8 * (i - at);
  return w;
}

// What each thread's four words a step come to, as the register behind the last step.
GPU_FN uint32_t join_words(const uint32_t *s) {
  uint32_t r = 0;
  for (unsigned k = 0; k < 4; ++k) r = crc_multiply(r ^ s[k], kCrcTables.power[2]);
  return crc_multiply(r, kCrcTables.place[threadIdx.x]);
}

// Whole steps, a share of them for each block; what is left behind them is for block 0. The header, too.
template <bool kLook>
GPU_FN uint32_t crc_of_share(const uint8_t *body, uint64_t bytes, const Regions &r, uint32_t *found) {
  __shared__ uint32_t table[4][256];
  __shared__ uint32_t results[kCrcThreads / kWarp];
  const uint64_t steps = bytes / kCrcStep, share = (steps + gridDim.x - 1) / gridDim.x;
  const uint64_t first = share * blockIdx.x < steps ? share * blockIdx.x : steps;
  const uint64_t last = first + share < steps ? first + share : steps;
  for (unsigned i = threadIdx.x; i < 4 * 256; i += kCrcThreads)
    table[i / 256][i % 256] = kCrcTables.step[i / 256][i % 256];
  __syncthreads();
  const bool fast = aligned(body, 16);
  uint32_t s[4] = {0, 0, 0, 0};
  for (uint64_t step = first; step < last; ++step) {
    const uint64_t at = step * kCrcStep + 16 * threadIdx.x;
    Bytes16 b;
    if (fast) {
      b = *(const Bytes16 *)(body + at);
    } else {
      for (unsigned k = 0; k < 4; ++k) b.w[k] = load_u32(body + at + 4 * k);
    }
    for (unsigned k = 0; k < 4; ++k) {
      s[k] = next_step(table, s[k]) ^ b.w[k];
      if (kLook) *found |= look_at(b.w[k], at + 4 * k, r);
    }
  }
  uint32_t mine = xor_of_warp(join_words(s));
  if (lane() == 0) results[threadIdx.x / kWarp] = mine;
  __syncthreads();
  mine = 0;
  for (unsigned w = 0; w < kCrcThreads / kWarp; ++w) mine ^= results[w];
  return crc_multiply(mine, crc_power_of_warp(kCrcTables, bytes - last * kCrcStep));
}

// What is behind whole steps, as one step that begins with zeros, which leave a register of zero as it is.
template <bool kLook>
GPU_FN uint32_t crc_of_end(const uint8_t *body, uint64_t bytes, const Regions &r, uint32_t *found) {
  __shared__ uint32_t results[kCrcThreads / kWarp];
  const int64_t end = (int64_t)bytes, begin = end - (int64_t)(bytes % kCrcStep);
  uint32_t s[4];
  for (unsigned k = 0; k < 4; ++k) {
    const int64_t from_end = (int64_t)(16 * (kCrcThreads - threadIdx.x)) - 4 * k;
    s[k] = load_between(body, end - from_end, begin, end);
    const int64_t at = begin + 16 * threadIdx.x + 4 * k;
    if (kLook && at < end) *found |= look_at(load_between(body, at, begin, end), (uint64_t)at, r);
  }
  const uint32_t mine = xor_of_warp(join_words(s));
  if (lane() == 0) results[threadIdx.x / kWarp] = mine;
  __syncthreads();
  uint32_t all = 0;
  for (unsigned w = 0; w < kCrcThreads / kWarp; ++w) all ^= results[w];
  return all;
}

// The header with zero in place of the checksum, followed by the body.
GPU_FN uint32_t crc_of_header(Header h, uint64_t body) {
  h.crc = 0;
  uint32_t words[8], crc = ~0u;
  GF_COPY(words, &h, sizeof words);
  for (unsigned i = 0; i < 8; ++i) {
    crc ^= words[i];
    for (unsigned k = 0; k < 32; ++k) crc = crc & 1u ? (crc >> 1) ^ gradflow::kCrcPolynomial : crc >> 1;
  }
  return crc_multiply(crc, crc_power_of_warp(kCrcTables, body));
}

// Adds this block's part of the checksum; whether it was the last block to do so.
template <bool kLook>
GPU_FN bool add_share(const Header &h, const uint8_t *body, uint64_t bytes, const Regions &r, Work *work) {
  __shared__ unsigned ended;
  uint32_t found = 0;
  uint32_t crc = crc_of_share<kLook>(body, bytes, r, &found);
  if (blockIdx.x == 0) crc ^= crc_of_end<kLook>(body, bytes, r, &found) ^ crc_of_header(h, bytes);
  if (kLook && found) atomicOr(&work->found, found);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicXor(&work->crc, crc);
    __threadfence();
    ended = atomicAdd(&work->ended, 1u);
    __threadfence();
  }
  __syncthreads();
  return ended == gridDim.x - 1;
}

GPU_FN Header load_header(const uint8_t *p) {
  Header h;
  uint32_t words[8];
  for (unsigned i = 0; i < 8; ++i) words[i] = load_u32(p + 4 * i);
  GF_COPY(&h, words, sizeof h);
  return h;
}

__global__ void __launch_bounds__(kCrcThreads)
    seal_kernel(Header h, Regions none, uint8_t *out, uint64_t *size, Work *work) {
  h.bytes = work->body;
  if (work->found & kSawNonfinite) h.flags |= gradflow::kFlagNonfinite;
  if (!add_share<false>(h, out + sizeof(Header), h.bytes, none, work) || threadIdx.x) return;
  h.crc = ~atomicXor(&work->crc, 0u);
  uint32_t words[8];
  GF_COPY(words, &h, sizeof words);
  for (unsigned i = 0; i < 8; ++i) store_u32(out + 4 * i, words[i]);
  *size = sizeof(Header) + h.bytes;
}

// ---- Checking -----------------------------------------------------------------------------------------

__global__ void open_kernel(Header expected, const uint8_t *in, uint64_t bytes, uint64_t least, uint64_t most,
                            int32_t *status, Work *work) {
  if (threadIdx.x) return;
  Work w = {};
  int verdict = GF_WIRE_TRUNCATED;
  if (bytes >= sizeof(Header)) {
    const Header h = load_header(in);
    verdict = gradflow::header_status(h, expected);
    w.body = h.bytes;
    if (verdict == GF_WIRE_OK) {
      if (!gradflow::length_fits(h, least, most)) {
        verdict = GF_WIRE_LENGTH;
      } else if (bytes - sizeof(Header) != h.bytes) {
        verdict = bytes - sizeof(Header) < h.bytes ? GF_WIRE_TRUNCATED : GF_WIRE_LENGTH;
      }
    }
  }
  *work = w;
  *status = verdict;
}

GPU_FN int verdict_on(const Header &h, const Regions &r, const uint8_t *body, uint32_t crc, uint32_t found) {
  const bool blocks = r.codec == gradflow::kDeadzone || r.codec == gradflow::kSign1 || r.scale_width;
  if (~crc != h.crc) return GF_WIRE_CHECKSUM;
  if (!gradflow::header_content_valid(h, gradflow::known_flags(r.codec))) return GF_WIRE_CONTENT;
  if (found & kBadTables) return GF_WIRE_CONTENT;
  if (found & kOtherSegments) return GF_WIRE_CODEC;
  if (h.flags & gradflow::kFlagEntropy) return GF_GPU_WIRE_ENTROPY;
  if (found & kBadContent) return GF_WIRE_CONTENT;
  const bool nonfinite = (h.flags & gradflow::kFlagNonfinite) != 0;
  if (blocks && nonfinite != ((found & kSawNonfinite) != 0)) return GF_WIRE_CONTENT;
  if (r.last_bits && body[r.scale_bytes + r.code_bytes - 1] >> r.last_bits) return GF_WIRE_CONTENT;
  return GF_WIRE_OK;
}

__global__ void __launch_bounds__(kCrcThreads)
    judge_kernel(Regions r, const uint8_t *in, int32_t *status, Work *work) {
  if (*status != GF_WIRE_OK) return;
  const Header h = load_header(in);
  const uint8_t *const body = in + sizeof(Header);
  // Nobody writes *status before all blocks have read it.
  if (!add_share<true>(h, body, h.bytes, r, work) || threadIdx.x) return;
  *status = verdict_on(h, r, body, atomicXor(&work->crc, 0u), atomicOr(&work->found, 0u));
}

// Enough blocks to fill a large GPU, and enough steps for each to be worth its tables.
unsigned crc_blocks(size_t most_body) {
  const size_t steps = most_body / kCrcStep / 16;
  return steps < 1 ? 1u : (steps > 2048 ? 2048u : (unsigned)steps);
}

}  // namespace

void seal(const Header &header, uint8_t *out, uint64_t *size, Work *work, size_t most_body,
          gpuStream_t stream) {
  const Regions none = {};
  GPU_LAUNCH(seal_kernel, crc_blocks(most_body), kCrcThreads, stream, header, none, out, size, work);
}

void open_payload(const Header &expected, const uint8_t *in, size_t bytes, uint64_t least, uint64_t most,
                  int32_t *status, Work *work, gpuStream_t stream) {
  GPU_LAUNCH(open_kernel, 1, kWarp, stream, expected, in, bytes, least, most, status, work);
}

void judge_payload(const Regions &regions, const uint8_t *in, size_t most_body, int32_t *status, Work *work,
                   gpuStream_t stream) {
  GPU_LAUNCH(judge_kernel, crc_blocks(most_body), kCrcThreads, stream, regions, in, status, work);
}

}  // namespace gradflow_gpu
