// deadzone's entropy stage: the same blocks as decisions of an adaptive binary range coder (G. N. N. Martin:
// Range encoding, 1979; the carry as in LZMA), beside bits that are as good as random, as docs/wire-format.md
// lays them out. No include guard by design: included inside each level's namespace, after deadzone_blocks.h.

constexpr unsigned kDzClasses = 28, kDzUnary = 16, kDzAdapt = 5;
constexpr uint32_t kDzProbabilityBits = 15, kDzMostCounted = 255, kDzTop = 1u << 24;

// Classes of how much was coded nearby, two for each factor of two.
inline unsigned dz_class(uint32_t w) {
  const uint32_t v = w + 1;
  const unsigned b = 31u - (unsigned)__builtin_clz(v);
  return 2 * b + (2 * v >> b & 1u);
}

inline void dz_adapt(uint16_t *p, bool bit) {
  *p = (uint16_t)(bit ? *p + (((1u << kDzProbabilityBits) - *p) >> kDzAdapt) : *p - (*p >> kDzAdapt));
}

// Probabilities that a decision says yes, and the magnitudes they depend on.
struct DzModel {
  uint16_t filled[kDzClasses], coded[kDzClasses], more[kDzClasses][kDzUnary], special;
  uint8_t last[kDzBlock] = {};   // magnitudes of the block before
  uint32_t sum = 0, before = 0;  // theirs, and that of the block before it

  DzModel() {
    for (unsigned c = 0; c < kDzClasses; ++c) {
      const uint32_t v = (2u | (c & 1u)) << (c >> 1) >> 1, one = 1u << kDzProbabilityBits;
      filled[c] = (uint16_t)(one * v / (v + 1));
      coded[c] = (uint16_t)(one * v / (v + 33));
      for (uint16_t &p : more[c]) p = coded[c] < one / 8 ? (uint16_t)(one / 8) : coded[c];
    }
    special = 1u << kDzProbabilityBits >> 6;
  }

  uint16_t *filled_model() { return &filled[dz_class(sum + (before >> 1))]; }
  void end_block(const uint8_t *counted, uint32_t total) {
    memcpy(last, counted, sizeof last);
    before = sum;
    sum = total;
  }
  // Of a block without codes.
  void end_block() {
    memset(last, 0, sizeof last);
    before = sum;
    sum = 0;
  }
};

inline unsigned dz_raw_bits(unsigned c) { return c >> 1 > 6 ? (c >> 1) - 6 : 0; }

class RangeEncoder {
 public:
  explicit RangeEncoder(uint8_t *out) : begin_(out), at_(out) {}

  void put(bool bit, uint16_t *p) {
    const uint32_t bound = (range_ >> kDzProbabilityBits) * *p;
    low_ += bit ? 0 : bound;
    range_ = bit ? bound : range_ - bound;
    dz_adapt(p, bit);
    while (range_ < kDzTop) {
      range_ <<= 8;
      shift_low();
    }
  }
  // Bytes so far, those included that wait for a carry.
  size_t bytes() const { return (size_t)(at_ - begin_) + pending_; }
  size_t finish() {
    for (int i = 0; i < 4; ++i) shift_low();
    flush(0);
    return (size_t)(at_ - begin_);
  }

 private:
  // The highest byte of `low_` waits until it is known whether a carry comes, and so do those after it that
  // are 0xff.
  void shift_low() {
    if (low_ < 0xff000000u || low_ >> 32) {
      flush((uint8_t)(low_ >> 32));
      held_ = (uint8_t)(low_ >> 24);
      waiting_ = true;
    } else {
      ++pending_;
    }
    low_ = (low_ & 0x00ffffffu) << 8;
  }
  void flush(uint8_t carry) {
    if (waiting_) *at_++ = (uint8_t)(held_ + carry);
    for (; pending_; --pending_) *at_++ = (uint8_t)(0xff + carry);
  }

  uint8_t *begin_, *at_;
  uint64_t low_ = 0;
  uint32_t range_ = 0xffffffffu;
  uint8_t held_ = 0;
  bool waiting_ = false;
  size_t pending_ = 0;
};

// Never reads beyond its bytes: what lies there counts as zeros.
class RangeDecoder {
 public:
  RangeDecoder(const uint8_t *in, size_t bytes) : at_(in), end_(in + bytes) {
    for (int i = 0; i < 4; ++i) code_ = code_ << 8 | next();
  }

  bool get(uint16_t *p) {
    const uint32_t bound = (range_ >> kDzProbabilityBits) * *p;
    const bool bit = code_ < bound;
    code_ -= bit ? 0 : bound;
    range_ = bit ? bound : range_ - bound;
    dz_adapt(p, bit);
    while (range_ < kDzTop) {
      range_ <<= 8;
      code_ = code_ << 8 | next();
    }
    return bit;
  }
  // Whether its bytes are those an encoder ends with.
  bool at_end() const { return at_ == end_ && !over_ && code_ == 0; }

 private:
  uint32_t next() {
    if (at_ != end_) return *at_++;
    over_ = true;
    return 0;
  }
  const uint8_t *at_, *end_;
  uint32_t range_ = 0xffffffffu, code_ = 0;
  bool over_ = false;
};

// ---- Encoding -------------------------------------------------------------------------------------------

inline void dz_put_entropy(RangeEncoder *e, BitWriter *raw, DzModel *model, const DzParsed &p,
                           const uint32_t *magnitudes, size_t count) {
  const bool special = p.nonfinite || p.shift;
  e->put(special, &model->special);
  if (special) {
    raw->put(p.nonfinite ? 1 : 0, 1);
    if (p.nonfinite) return model->end_block();
    raw->put(p.shift, 7);
  }
  uint8_t counted[kDzBlock] = {};
  uint32_t window = model->sum, total = 0;
  for (size_t i = 0; i < count; ++i) {
    const unsigned c = dz_class(window);
    const bool some = p.coded >> i & 1u;
    e->put(some, &model->coded[c]);
    if (some) {
      const uint32_t m = magnitudes[i];
      const unsigned k = dz_raw_bits(c);
      const uint32_t high = m >> k;
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
      counted[i] = (uint8_t)(m < kDzMostCounted ? m + 1 : kDzMostCounted);
    }
    total += counted[i];
    window += counted[i] - (uint32_t)model->last[i];
  }
  raw->put(gather_bits(p.negative, p.coded), (unsigned)__builtin_popcount(p.coded));
  model->end_block(counted, total);
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
        e.put(some, model.filled_model());
        if (!some) {
          model.end_block();
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
      model->end_block();
      return true;
    }
    p->shift = raw->get(7);
    if (p->shift == 0 || p->shift > GF_DZ_MAX_SHIFT) return false;
  }
  uint8_t counted[kDzBlock] = {};
  uint32_t window = model->sum, total = 0;
  for (size_t i = 0; i < count; ++i) {
    const unsigned c = dz_class(window);
    if (d->get(&model->coded[c])) {
      const unsigned k = dz_raw_bits(c);
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
      magnitudes[i] = m;
      p->coded |= 1u << i;
      counted[i] = (uint8_t)(m < kDzMostCounted ? m + 1 : kDzMostCounted);
    }
    total += counted[i];
    window += counted[i] - (uint32_t)model->last[i];
  }
  p->negative = scatter_bits(raw->get((unsigned)__builtin_popcount(p->coded)), p->coded);
  model->end_block(counted, total);
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
        if (!d.get(model.filled_model())) {
          model.end_block();
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
