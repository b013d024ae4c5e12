// deadzone_blocks.h's parts without vector instructions. No include guard by design.

// The bits of `bits` where `mask` is set, side by side.
inline uint32_t gather_bits(uint32_t bits, uint32_t mask) {
  uint32_t out = 0;
  for (unsigned at = 0; mask; mask &= mask - 1, ++at) out |= (bits >> __builtin_ctz(mask) & 1u) << at;
  return out;
}

// The lowest bits of `bits`, in the places where `mask` is set.
inline uint32_t scatter_bits(uint32_t bits, uint32_t mask) {
  uint32_t out = 0;
  for (; mask; mask &= mask - 1, bits >>= 1) out |= (bits & 1u) << __builtin_ctz(mask);
  return out;
}

// The codes of one block, each less one (zeros stay zero).
class Magnitudes {
 public:
  Magnitudes() { clear(); }
  void clear() { memset(m_, 0, sizeof m_); }
  void load(const uint32_t *m) { memcpy(m_, m, sizeof m_); }
  void store(uint32_t *m) const { memcpy(m, m_, sizeof m_); }

  void quantize(const float *x, float *residual, const gf_dz_block &p, uint32_t most, uint32_t *coded,
                uint32_t *negative) {
    dz_quantize(x, residual, p, most, coded, negative, m_);
  }

  uint32_t sum() const {
    uint32_t s = 0;
    for (uint32_t m : m_) s += m;
    return s;
  }
  // A bit for each element: bit b of its magnitude.
  uint32_t bit(unsigned b) const {
    uint32_t mask = 0;
    for (unsigned i = 0; i < GF_DZ_BLOCK; ++i) mask |= (m_[i] >> b & 1u) << i;
    return mask;
  }
  // Whether the magnitude without its k lowest bits is at least j.
  uint32_t above(unsigned k, uint32_t j) const {
    uint32_t mask = 0;
    for (unsigned i = 0; i < GF_DZ_BLOCK; ++i) mask |= (m_[i] >> k >= j ? 1u : 0u) << i;
    return mask;
  }
  void add(uint32_t mask, unsigned b) {
    for (; mask; mask &= mask - 1) m_[__builtin_ctz(mask)] += 1u << b;
  }
  // Adds the values to 32 floats; only codes that are not zero touch any.
  void put(float *out, uint32_t coded, uint32_t negative, float step) const {
    for (; coded; coded &= coded - 1) {
      const unsigned i = (unsigned)__builtin_ctz(coded);
      out[i] = gf_add(out[i], gf_dz_value(m_[i] + 1u, negative >> i & 1u, step));
    }
  }

 private:
  uint32_t m_[GF_DZ_BLOCK];
};
