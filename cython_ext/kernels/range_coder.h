// Adaptive binary range coder (G. N. N. Martin: Range encoding, 1979) of the entropy stages, as
// docs/wire-format.md states it. No include guard by design: included inside each level's namespace, after
// scalar_blocks.h.

constexpr unsigned kAdapt = 5, kProbabilityBits = 15;

inline void adapt(uint16_t *p, bool bit) {
  const uint32_t up = *p + (((1u << kProbabilityBits) - *p) >> kAdapt), down = *p - (*p >> kAdapt);
  *p = (uint16_t)(bit ? up : down);
}

class RangeEncoder {
 public:
  explicit RangeEncoder(uint8_t *out) : begin_(out), at_(out) {}

  void put(bool bit, uint16_t *p) {
    const uint64_t bound = (range_ >> kProbabilityBits) * *p;
    add(bit ? 0 : bound);
    range_ = bit ? bound : range_ - bound;
    adapt(p, bit);
    if (range_ >> 32) return;
    put_word();
    range_ <<= 32;
  }
  size_t bytes() const { return (size_t)(at_ - begin_); }
  // The one number within the range whose lower half is zero, of which the upper one goes out.
  size_t finish() {
    add(0xffffffffu);
    put_word();
    return bytes();
  }

 private:
  void add(uint64_t more) {
    low_ += more;
    if (__builtin_expect(low_ < more, 0)) {  // a carry; never at the very first byte
      uint8_t *p = at_ - 1;
      while (++*p == 0) --p;
    }
  }
  void put_word() {
    store_u32(at_, __builtin_bswap32((uint32_t)(low_ >> 32)));
    at_ += 4;
    low_ <<= 32;
  }

  uint8_t *begin_, *at_;
  uint64_t low_ = 0, range_ = ~0ull;
};

// Never reads beyond its bytes: what lies there counts as zeros.
class RangeDecoder {
 public:
  RangeDecoder(const uint8_t *in, size_t bytes) : at_(in), end_(in + bytes) {
    code_ = (uint64_t)next() << 32;
    code_ |= next();
  }

  bool get(uint16_t *p) {
    const uint64_t bound = (range_ >> kProbabilityBits) * *p;
    const bool bit = code_ < bound;
    code_ -= bit ? 0 : bound;
    range_ = bit ? bound : range_ - bound;
    adapt(p, bit);
    if (range_ >> 32 == 0) {
      range_ <<= 32;
      code_ = code_ << 32 | next();
    }
    return bit;
  }
  // Whether its bytes are those an encoder ends with.
  bool at_end() const { return at_ == end_ && beyond_ == 1 && code_ >> 32 == 0; }

 private:
  uint32_t next() {
    if (end_ - at_ < 4) {
      ++beyond_;
      return 0;
    }
    const uint32_t word = __builtin_bswap32(load_u32(at_));
    at_ += 4;
    return word;
  }

  const uint8_t *at_, *end_;
  uint64_t range_ = ~0ull, code_;
  size_t beyond_ = 0;
};
