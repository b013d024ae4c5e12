// The level without hand-written vectors: everything is left to the scalar loops. No include guard by design.

struct Simd {
  static size_t max_abs(const EncodeRun &, uint32_t *) { return 0; }
  template <int kBits>
  static size_t encode_uniform(const EncodeRun &, const gf_uniform_block &, uint64_t) {
    return 0;
  }
  template <int kBits>
  static size_t decode_uniform(const DecodeRun &, const gf_uniform_block &) {
    return 0;
  }
  static size_t encode_log4(const EncodeRun &, uint32_t, uint64_t) { return 0; }
  static size_t decode_log4(const DecodeRun &, uint32_t) { return 0; }
  static size_t encode_fp16(const EncodeRun &, uint32_t) { return 0; }
  static size_t decode_fp16(const DecodeRun &, uint32_t) { return 0; }
  static size_t encode_bf16(const EncodeRun &, uint32_t *) { return 0; }
  static size_t decode_bf16(const DecodeRun &) { return 0; }
  static size_t encode_none(const EncodeRun &, uint32_t *) { return 0; }
  template <class Words>
  static size_t sign1_look(const EncodeRun &, Words *) {
    return 0;
  }
  static size_t sign1_lose(const EncodeRun &, float, size_t) { return 0; }
  static size_t sign1_put(const DecodeRun &, const uint8_t *, const uint8_t *, float) { return 0; }
  static bool topk_digits(const EncodeRun &, size_t, unsigned, uint32_t *, size_t *) { return false; }
  static uint32_t topk_within(const EncodeRun &, size_t, uint32_t, uint32_t) { return 0xff; }
  static void topk_owe(const EncodeRun &, size_t) {}
  static size_t load_half(const uint8_t *, float *, size_t, uint32_t *) { return 0; }
  static size_t store_half(const float *, float, uint8_t *, size_t) { return 0; }
};
