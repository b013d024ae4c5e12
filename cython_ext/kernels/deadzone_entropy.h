// deadzone's entropy stage: the same blocks as decisions, beside bits that are as good as random, as
// docs/wire-format.md lays them out. No include guard by design: included inside each level's namespace,
// after deadzone_blocks.h and range_coder.h.

constexpr unsigned kDzClasses = 30, kDzUnary = 16;
constexpr uint32_t kDzMostCounted = 255;

// Classes of how much was coded nearby, two for each factor of two.
inline unsigned dz_class(uint32_t w) {
  const uint32_t v = w + 1;
  const unsigned b = 31u - (unsigned)__builtin_clz(v);
  return 2 * b + (2 * v >> b & 1u);
}

// Probabilities that a decision says yes, and what they depend on.
struct DzModel {
  uint16_t filled[kDzClasses], coded[kDzClasses], more[kDzClasses][kDzUnary], special;
  // Of magnitudes, in the last block and in the one before; at first as if there had been a few codes.
  uint32_t sum = 16, before = 16;

  DzModel() {
    for (unsigned c = 0; c < kDzClasses; ++c) {
      const uint32_t v = (2u | (c & 1u)) << (c >> 1) >> 1, one = 1u << kProbabilityBits;
      filled[c] = (uint16_t)(one * v / (v + 1));
      coded[c] = (uint16_t)(one * v / (v + 97));
      for (uint16_t &p : more[c]) p = coded[c] < one / 8 ? (uint16_t)(one / 8) : coded[c];
    }
    special = 1u << kProbabilityBits >> 6;
  }
  unsigned next_class() const { return dz_class(2 * sum + before); }
  void end_block(uint32_t total) {
    before = sum;
    sum = total;
  }
};

inline uint32_t dz_counted(uint32_t m) { return m < kDzMostCounted ? m + 1 : kDzMostCounted; }
// Low bits of a magnitude that are not worth a decision.
inline unsigned dz_raw_bits(unsigned c) { return c >> 1 > 8 ? (c >> 1) - 8 : 0; }

// ---- Encoding -------------------------------------------------------------------------------------------

inline void dz_put_entropy(RangeEncoder *e, BitWriter *raw, DzModel *model, const DzParsed &p,
                           const uint32_t *magnitudes, size_t count) {
  const bool special = p.nonfinite || p.shift;
  e->put(special, &model->special);
  if (special) {
    raw->put(p.nonfinite ? 1 : 0, 1);
    if (p.nonfinite) return model->end_block(0);
    raw->put(p.shift, 7);
  }
  const unsigned c = model->next_class(), k = dz_raw_bits(c);
  for (size_t i = 0; i < count; ++i) e->put(p.coded >> i & 1u, &model->coded[c]);
  uint32_t total = 0;
  for (uint32_t left = p.coded; left; left &= left - 1) {
    const uint32_t m = magnitudes[__builtin_ctz(left)], high = m >> k;
    total += dz_counted(m);
    raw->put(m & ((1u << k) - 1), k);
    for (uint32_t j = 0; j < kDzUnary; ++j) {
      e->put(high > j, &model->more[c][j]);
      if (high <= j) break;
    }
    if (high >= kDzUnary) {
      const uint32_t rest = high - kDzUnary + 1;
      const unsigned bits = 31u - (unsigned)__builtin_clz(rest);
      raw->put(bits, 5);
      raw->put(rest - (1u << bits), bits);
    }
  }
  raw->put(gather_bits(p.negative, p.coded), (unsigned)__builtin_popcount(p.coded));
  model->end_block(total);
}

// The blocks of a packed body; false once they take more than `most` bytes.
inline bool squeeze_deadzone(DeadzoneSqueeze *run) {
  RangeEncoder e(run->coded);
  BitWriter raw(run->raw);
  DzModel model;
  const uint32_t segments = load_u32(run->body);
  const uint8_t *sizes = run->body + 4 + 8 * (size_t)segments, *at = run->groups;
  size_t left = run->n;
  for (uint32_t s = 0; s < segments; ++s) {
    for (uint32_t blocks = load_u32(run->body + 4 + 8 * (size_t)s); blocks; sizes += 2) {
      const size_t bytes = load_u16(sizes, 0), in_group = blocks < 32 ? blocks : 32;
      const uint32_t filled = bytes ? load_u32(at) : 0;
      BitReader r(at + 4, bytes ? bytes - 4 : 0);
      for (size_t b = 0; b < in_group; ++b) {
        const size_t count = left < kDzBlock ? left : kDzBlock;
        left -= count;
        const bool some = filled >> b & 1u;
        e.put(some, &model.filled[model.next_class()]);
        if (!some) {
          model.end_block(0);
          continue;
        }
        DzParsed p = {};
        Magnitudes codes;
        uint32_t magnitudes[kDzBlock];
        dz_parse<true>(&r, &p, &codes);
        codes.store(magnitudes);
        dz_put_entropy(&e, &raw, &model, p, magnitudes, count);
      }
      if (e.bytes() + raw.bytes() > run->most) return false;
      at += bytes;
      blocks -= (uint32_t)in_group;
    }
  }
  run->coded_bytes = e.finish();
  run->raw_bytes = raw.finish();
  return true;
}

// ---- Decoding -------------------------------------------------------------------------------------------

inline bool dz_get_entropy(RangeDecoder *d, BitReader *raw, DzModel *model, DzParsed *p, uint32_t *magnitudes,
                           size_t count) {
  if (d->get(&model->special)) {
    p->nonfinite = raw->get(1);
    if (p->nonfinite) {
      model->end_block(0);
      return true;
    }
    p->shift = raw->get(7);
    if (p->shift == 0 || p->shift > GF_DZ_MAX_SHIFT) return false;
  }
  const unsigned c = model->next_class(), k = dz_raw_bits(c);
  for (size_t i = 0; i < count; ++i) p->coded |= (uint32_t)d->get(&model->coded[c]) << i;
  uint32_t total = 0;
  for (uint32_t left = p->coded; left; left &= left - 1) {
    const uint32_t low = raw->get(k);
    uint32_t high = 0;
    while (high < kDzUnary && d->get(&model->more[c][high])) ++high;
    if (high == kDzUnary) {
      const unsigned bits = raw->get(5);
      if (bits >= GF_DZ_SUM_BITS) return false;
      high += (1u << bits) + raw->get(bits) - 1;
    }
    if (high >= 1u << GF_DZ_SUM_BITS >> k) return false;
    const uint32_t m = high << k | low;
    magnitudes[__builtin_ctz(left)] = m;
    total += dz_counted(m);
  }
  p->negative = scatter_bits(raw->get((unsigned)__builtin_popcount(p->coded)), p->coded);
  model->end_block(total);
  return p->coded != 0;
}

// Writes sizes and groups as `encode_deadzone` does; false if no encoder writes what it reads.
inline bool unsqueeze_deadzone(DeadzoneUnsqueeze *run) {
  RangeDecoder d(run->coded, run->coded_bytes);
  BitReader raw(run->raw, run->raw_bytes);
  DzModel model;
  uint8_t *sizes = run->sizes, *at = run->groups;
  size_t left = run->n;
  for (uint32_t s = 0; s < run->segments; ++s) {
    for (uint32_t blocks = load_u32(run->table + 8 * (size_t)s); blocks; sizes += 2) {
      const size_t in_group = blocks < 32 ? blocks : 32;
      BitWriter w(at + 4);
      uint32_t filled = 0;
      for (size_t b = 0; b < in_group; ++b) {
        const size_t count = left < kDzBlock ? left : kDzBlock;
        left -= count;
        if (!d.get(&model.filled[model.next_class()])) {
          model.end_block(0);
          continue;
        }
        filled |= 1u << b;
        DzParsed p = {};
        uint32_t magnitudes[kDzBlock] = {};
        if (!dz_get_entropy(&d, &raw, &model, &p, magnitudes, count) || raw.overrun()) return false;
        if (p.nonfinite) {
          w.put(kDzNonfinite, 4);
          continue;
        }
        Magnitudes codes;
        codes.load(magnitudes);
        dz_put_block(&w, p.shift, p.coded, p.negative, codes);
      }
      const size_t bytes = filled ? 4 + w.finish() : 0;
      if (filled) store_u32(at, filled);
      dz_store_u16(sizes, 0, bytes);
      at += bytes;
      blocks -= (uint32_t)in_group;
    }
  }
  run->end = at;
  return d.at_end() && raw.at_end();
}
