// Bits in and out of memory, the first one into the lowest bit of the first byte. No include guard by
// design: included inside each level's namespace.

class BitWriter {
 public:
  explicit BitWriter(uint8_t *out) : begin_(out), at_(out) {}

  // The lowest `count` bits of `bits`, up to 32; the others must be zero.
  void put(uint32_t bits, unsigned count) {
    held_ |= (uint64_t)bits << filled_;
    filled_ += count;
    if (filled_ >= 32) {
      store_u32(at_, (uint32_t)held_);
      at_ += 4;
      held_ >>= 32;
      filled_ -= 32;
    }
  }

  size_t bytes() const { return (size_t)(at_ - begin_) + (filled_ + 7) / 8; }
  // Fills the last byte up with zeros; returns the bytes written.
  size_t finish() {
    for (; filled_ > 0; filled_ = filled_ > 8 ? filled_ - 8 : 0) {
      *at_++ = (uint8_t)held_;
      held_ >>= 8;
    }
    return (size_t)(at_ - begin_);
  }

 private:
  uint8_t *begin_, *at_;
  uint64_t held_ = 0;
  unsigned filled_ = 0;
};

// Never reads beyond its bytes: what lies there counts as zeros, and `overrun` tells.
class BitReader {
 public:
  BitReader(const uint8_t *in, size_t bytes) : in_(in), bytes_(bytes) {}

  // Up to 32 bits.
  uint32_t get(unsigned count) {
    const size_t byte = at_ / 8;
    uint64_t word = 0;
    if (byte + 8 <= bytes_) {
      memcpy(&word, in_ + byte, 8);
    } else if (byte < bytes_) {
      memcpy(&word, in_ + byte, bytes_ - byte);
    }
    word >>= at_ % 8;
    at_ += count;
    return (uint32_t)(word & ((1ull << count) - 1));
  }

  // The zeros before the next 1, which is taken too. Where none follows it is an overrun.
  uint64_t zeros() {
    for (uint64_t found = 0; at_ < 8 * bytes_; found += 32) {
      const uint32_t bits = get(32);
      if (bits) {
        at_ -= 31u - (unsigned)__builtin_ctz(bits);
        return found + (uint64_t)__builtin_ctz(bits);
      }
    }
    at_ = 8 * bytes_ + 1;
    return 0;
  }

  // Bytes in which something was read.
  size_t bytes() const { return (at_ + 7) / 8; }
  // Whether the rest of the byte in which reading stopped is zero.
  bool padded() const { return at_ % 8 == 0 || in_[at_ / 8] >> (at_ % 8) == 0; }
  bool overrun() const { return at_ > 8 * bytes_; }
  // Whether nothing but the filling of the last byte is left, and that is zero.
  bool at_end() {
    const size_t left = 8 * bytes_ - at_;
    return !overrun() && left < 8 && get((unsigned)left) == 0;
  }

 private:
  const uint8_t *in_;
  size_t bytes_;
  size_t at_ = 0;
};
