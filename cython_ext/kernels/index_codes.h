// Ascending indices as gaps in Rice codes (docs/wire-format.md, "Indices"), in and out of memory. No include
// guard by design: included inside each level's namespace, after deadzone_bits.h.

class IndexWriter {
 public:
  // Of `k` indices below n.
  IndexWriter(uint8_t *out, uint64_t n, uint64_t k) : bits_(out + 1), b_(gf_rice_parameter(n, k)) {
    out[0] = (uint8_t)b_;
  }

  void put(uint64_t index) {
    const uint64_t gap = index - next_;
    uint64_t zeros = gap >> b_;
    next_ = index + 1;
    for (; zeros >= 32; zeros -= 32) bits_.put(0, 32);
    bits_.put(1u << zeros, (unsigned)zeros + 1);
    const uint64_t low = gap & ((1ull << b_) - 1);
    bits_.put((uint32_t)low, b_ < 32 ? b_ : 32);
    if (b_ > 32) bits_.put((uint32_t)(low >> 32), b_ - 32);
  }

  // Returns the bytes of the code.
  size_t finish() { return 1 + bits_.finish(); }

 private:
  BitWriter bits_;
  unsigned b_;
  uint64_t next_ = 0;
};

class IndexReader {
 public:
  // Of `k` indices below n; the code is at the front of `bytes` bytes, of which there is at least one.
  IndexReader(const uint8_t *in, size_t bytes, uint64_t n, uint64_t k)
      : bits_(in + 1, bytes - 1), n_(n), b_(gf_rice_parameter(n, k)), valid_(in[0] == b_) {}

  // The next index; nothing that is right once `valid` says no.
  uint64_t get() {
    const uint64_t zeros = bits_.zeros();
    uint64_t gap = b_ < 32 ? bits_.get(b_) : bits_.get(32);
    if (b_ > 32) gap |= (uint64_t)bits_.get(b_ - 32) << 32;
    // Neither shift nor sum overflows: what is too far is told by its leading bits.
    valid_ = valid_ && !bits_.overrun() && zeros <= n_ >> b_;
    gap |= (valid_ ? zeros : 0) << b_;
    valid_ = valid_ && gap < n_ - next_;
    const uint64_t index = next_ + gap;
    next_ = valid_ ? index + 1 : next_;
    return index;
  }

  bool valid() const { return valid_; }
  // After the last index: the bytes of the code, 0 if its last byte is not filled up with zeros.
  size_t bytes() const { return bits_.padded() ? 1 + bits_.bytes() : 0; }

 private:
  BitReader bits_;
  uint64_t n_;
  unsigned b_;
  bool valid_;
  uint64_t next_ = 0;
};

inline size_t encode_indices(const int64_t *indices, size_t k, uint64_t n, uint8_t *out) {
  IndexWriter writer(out, n, k);
  for (size_t i = 0; i < k; ++i) writer.put((uint64_t)indices[i]);
  return writer.finish();
}

// Whether all of `in` is the code of k indices; only then `out` is written.
inline bool decode_indices(const uint8_t *in, size_t bytes, uint64_t n, int64_t *out, size_t k) {
  if (bytes == 0) return false;
  IndexReader check(in, bytes, n, k);
  for (size_t i = 0; check.valid() && i < k; ++i) check.get();
  if (!check.valid() || check.bytes() != bytes) return false;
  IndexReader reader(in, bytes, n, k);
  for (size_t i = 0; i < k; ++i) out[i] = (int64_t)reader.get();
  return true;
}
