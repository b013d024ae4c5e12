// One block of deadzone as a plain loop; every level has it. No include guard by design.

// Codes of a block: which are not zero, which are negative, and their magnitudes less one.
inline void dz_quantize(const float *x, float *residual, const gf_dz_block &p, uint32_t most, uint32_t *coded,
                        uint32_t *negative, uint32_t *magnitudes) {
  *coded = *negative = 0;
  for (unsigned i = 0; i < GF_DZ_BLOCK; ++i) {
    const float v = sum_at(x, residual, i);
    const uint32_t q = gf_dz_code(v, p, most), sign = gf_bits(v) >> 31;
    *coded |= (q ? 1u : 0u) << i;
    *negative |= sign << i;
    magnitudes[i] = q ? q - 1u : 0u;
    if (residual) residual[i] = gf_sub(v, q ? gf_dz_value(q, sign, p.step) : 0.0f);
  }
}
