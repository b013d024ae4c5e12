// deadzone: groups of 32 blocks of 32 elements, as docs/wire-format.md lays them out. Each level provides
// `Magnitudes` (the codes of a block, less one), `gather_bits` and `scatter_bits`. No include guard by
// design: included inside each level's namespace, after block_loops.h.

constexpr size_t kDzBlock = GF_DZ_BLOCK;
constexpr size_t kDzGroup = 32 * kDzBlock;  // elements
constexpr unsigned kDzMostPlaces = 5;  // codes of a block up to which their places are cheaper than a mask
constexpr uint32_t kDzShifted = 6, kDzNonfinite = 7, kDzLarge = 8;  // forms, and the flag beside them

inline void dz_store_u16(uint8_t *p, size_t i, size_t value) { store_u16(p, i, (uint16_t)value); }

// ---- Encoding -------------------------------------------------------------------------------------------

// Low bits of each code that are sent as they are; what is above them goes in unary. About log2 of the mean.
inline unsigned dz_low_bits(uint32_t sum, unsigned count) {
  unsigned k = 0;
  while (sum >> (k + 1) >= count) ++k;
  return k;
}

inline void dz_put_block(BitWriter *w, uint32_t shift, uint32_t coded, uint32_t negative,
                         const Magnitudes &m) {
  const unsigned count = (unsigned)__builtin_popcount(coded);
  const uint32_t sum = m.sum();
  if (shift) w->put(kDzShifted | shift << 4, 11);
  const bool places = count <= kDzMostPlaces;
  w->put((places ? count : 0u) | (sum ? kDzLarge : 0u), 4);
  unsigned k = 0;
  if (sum) {
    k = dz_low_bits(sum, count);
    if (k < 3) {
      w->put(k, 2);
    } else {
      w->put(3u | k << 2, 7);
    }
  }
  if (places) {
    uint32_t packed = 0;
    unsigned at = 0;
    for (uint32_t left = coded; left; left &= left - 1, at += 5)
      packed |= (uint32_t)__builtin_ctz(left) << at;
    w->put(packed, at);
  } else {
    w->put(coded, 32);
  }
  w->put(gather_bits(negative, coded), count);
  if (!sum) return;
  for (unsigned b = 0; b < k; ++b) w->put(gather_bits(m.bit(b), coded), count);
  // One bit for each code that has not ended: whether it goes on.
  uint32_t alive = coded;
  for (uint32_t j = 1; alive; ++j) {
    const uint32_t on = m.above(k, j) & alive;
    w->put(gather_bits(on, alive), (unsigned)__builtin_popcount(alive));
    alive = on;
  }
}

struct DzStep {
  gf_dz_block plain;  // of blocks that are not shifted
  uint32_t most;      // largest code
};

// One block of 32; returns whether it has anything to send.
inline bool dz_encode_block(const DeadzoneEncode &run, const DzStep &step, const float *x, float *residual,
                            BitWriter *w, bool *nonfinite) {
  EncodeRun b = {};
  b.x = x;
  b.residual = residual;
  b.n = kDzBlock;
  const uint32_t m = any_block_max(b);
  if (m >= GF_INF_BITS) {
    *nonfinite = true;
    w->put(kDzNonfinite, 4);
    return true;
  }
  uint32_t shift = 0;
  gf_dz_block p = step.plain;
  if (m && run.step > 0.0f) {
    shift = gf_dz_shift(m, run.step, run.code_bits);
    if (shift) p = gf_dz_params(run.step, shift, run.offset);
  }
  if (m == 0 || run.step == 0.0f || gf_dz_code(gf_float(m), p, step.most) == 0) {
    if (residual)
      for (size_t i = 0; i < kDzBlock; ++i) residual[i] = gf_add_residual(x[i], residual[i]);
    return false;
  }
  Magnitudes codes;
  uint32_t coded, negative;
  if (plain_sums(b, m)) {
    codes.quantize(x, residual, p, step.most, &coded, &negative);
  } else {
    uint32_t q[kDzBlock];
    dz_quantize(x, residual, p, step.most, &coded, &negative, q);
    codes.load(q);
  }
  if (!coded) return false;
  dz_put_block(w, shift, coded, negative, codes);
  return true;
}

inline size_t encode_deadzone(DeadzoneEncode *run) {
  DzStep step = {};
  step.most = 1u << run->code_bits;
  if (run->step > 0.0f) step.plain = gf_dz_params(run->step, 0, run->offset);
  uint8_t *at = run->out;
  for (size_t begin = 0, group = 0; begin < run->n; begin += kDzGroup, ++group) {
    BitWriter w(at + 4);
    uint32_t filled = 0;
    for (size_t block = 0; block < 32 && begin + block * kDzBlock < run->n; ++block) {
      const size_t i = begin + block * kDzBlock, left = run->n - i;
      bool some;
      if (left >= kDzBlock) {
        some = dz_encode_block(*run, step, run->x + i, run->residual ? run->residual + i : nullptr, &w,
                               &run->nonfinite);
      } else {
        float x[kDzBlock] = {}, r[kDzBlock] = {};
        memcpy(x, run->x + i, left * sizeof(float));
        if (run->residual) memcpy(r, run->residual + i, left * sizeof(float));
        some = dz_encode_block(*run, step, x, run->residual ? r : nullptr, &w, &run->nonfinite);
        if (run->residual) memcpy(run->residual + i, r, left * sizeof(float));
      }
      filled |= (some ? 1u : 0u) << block;
    }
    const size_t bytes = filled ? 4 + w.finish() : 0;
    if (filled) store_u32(at, filled);
    dz_store_u16(run->sizes, group, bytes);
    at += bytes;
  }
  return (size_t)(at - run->out);
}

// ---- Decoding -------------------------------------------------------------------------------------------

struct DzParsed {
  uint32_t coded, negative, shift;
  bool nonfinite;
};

// Reads one block; false if no encoder writes it so. `codes` may be null: then it is only checked.
template <bool kKeep>
inline bool dz_parse(BitReader *r, DzParsed *p, Magnitudes *codes) {
  p->shift = 0;
  p->nonfinite = false;
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
  unsigned count = form & 7u;
  if (count > kDzMostPlaces) return false;
  const bool large = form & kDzLarge;
  unsigned k = 0;
  if (large) {
    k = r->get(2);
    if (k == 3) {
      k = r->get(5);
      if (k < 3 || k >= GF_DZ_SUM_BITS) return false;
    }
  }
  bool valid = true;
  if (count) {
    const uint32_t packed = r->get(5 * count);
    uint32_t mask = 0;
    for (unsigned i = 0; i < count; ++i) {
      const uint32_t place = 1u << (packed >> (5 * i) & 31u);
      valid &= place > mask;  // in ascending order
      mask |= place;
    }
    p->coded = mask;
    valid &= (unsigned)__builtin_popcount(mask) == count;
    if (!valid) return false;
  } else {
    p->coded = r->get(32);
    count = (unsigned)__builtin_popcount(p->coded);
    if (count <= kDzMostPlaces) return false;
  }
  p->negative = scatter_bits(r->get(count), p->coded);
  if (!large) return true;
  uint64_t sum = 0;
  for (unsigned b = 0; b < k; ++b) {
    const uint32_t bits = r->get(count);
    sum += (uint64_t)__builtin_popcount(bits) << b;
    if (kKeep) codes->add(scatter_bits(bits, p->coded), b);
  }
  uint32_t alive = p->coded;
  for (uint64_t j = 1; alive; ++j) {
    const uint32_t on = scatter_bits(r->get((unsigned)__builtin_popcount(alive)), alive);
    alive = on;
    sum += (uint64_t)__builtin_popcount(on) << k;
    if (kKeep) codes->add(on, k);
    if (on && j << k > 1u << GF_DZ_SUM_BITS) return false;
  }
  return sum > 0 && sum < 1ull << 32 && dz_low_bits((uint32_t)sum, count) == k;
}

// Whether the groups of a segment are what an encoder may have written, and whether they have blocks that are
// not finite. `bytes` is what their sizes add up to.
inline bool check_deadzone(const DeadzoneDecode &run, bool *nonfinite) {
  const uint8_t *at = run.in;
  for (size_t begin = 0, group = 0; begin < run.n; begin += kDzGroup, ++group) {
    const size_t bytes = load_u16(run.sizes, group);
    if (bytes == 0) continue;
    if (bytes < 5) return false;
    const size_t left = run.n - begin;
    const size_t blocks = left >= kDzGroup ? 32 : (left + kDzBlock - 1) / kDzBlock;
    const uint32_t filled = load_u32(at);
    if (filled == 0 || (uint64_t)filled >> blocks) return false;
    BitReader r(at + 4, bytes - 4);
    for (uint32_t rest = filled; rest; rest &= rest - 1) {
      const size_t in_block = left - (size_t)__builtin_ctz(rest) * kDzBlock;
      DzParsed p = {};
      if (!dz_parse<false>(&r, &p, nullptr) || r.overrun()) return false;
      *nonfinite |= p.nonfinite;
      if (p.nonfinite) continue;
      if (in_block < kDzBlock && p.coded >> in_block) return false;
      if (run.step == 0.0f) return false;
      if (p.shift && gf_abs_bits(gf_mul(run.step, gf_power_of_two((int32_t)p.shift))) > GF_MAX_BITS)
        return false;
    }
    if (!r.at_end()) return false;
    at += bytes;
  }
  return true;
}

// Of a payload that has been checked.
inline void decode_deadzone(const DeadzoneDecode &run) {
  const uint8_t *at = run.in;
  for (size_t begin = 0, group = 0; begin < run.n; begin += kDzGroup, ++group) {
    const size_t bytes = load_u16(run.sizes, group);
    const size_t left = run.n - begin, count = left < kDzGroup ? left : kDzGroup;
    float *out = run.out + begin;
    if (!run.add) memset(out, 0, count * sizeof(float));
    if (bytes == 0) continue;
    BitReader r(at + 4, bytes - 4);
    at += bytes;
    for (uint32_t rest = load_u32(at - bytes); rest; rest &= rest - 1) {
      const size_t i = (size_t)__builtin_ctz(rest) * kDzBlock, in_block = count - i;
      DzParsed p = {};
      Magnitudes codes;
      dz_parse<true>(&r, &p, &codes);
      if (p.nonfinite) {
        put_nan(out + i, in_block < kDzBlock ? in_block : kDzBlock, run.add);
        continue;
      }
      const float step = gf_mul(run.step, gf_power_of_two((int32_t)p.shift));
      if (in_block >= kDzBlock) {
        codes.put(out + i, p.coded, p.negative, step);
      } else {
        float tail[kDzBlock] = {};
        memcpy(tail, out + i, in_block * sizeof(float));
        codes.put(tail, p.coded, p.negative, step);
        memcpy(out + i, tail, in_block * sizeof(float));
      }
    }
  }
}
