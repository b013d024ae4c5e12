// The table of one level, from the functions that its file has by now. No include guard by design: included
// last inside each level's namespace.

constexpr Level level_of(const char *name, uint32_t (*crc)(uint32_t, const uint8_t *, size_t)) {
  return {name,           encode_uniform,  decode_uniform,   encode_log4,
          decode_log4,    encode_fp16,     decode_fp16,      encode_bf16,
          decode_bf16,    encode_none,     decode_none,      encode_deadzone,
          check_deadzone, decode_deadzone, squeeze_deadzone, unsqueeze_deadzone,
          squeeze_codes,  unsqueeze_codes, encode_sign1,     check_sign1,
          decode_sign1,   encode_topk,     check_topk,       decode_topk,
          encode_indices, decode_indices,  codes_valid,      crc,
          load_f32,       store_f32,       sum_f32,          sum_f64,
          energy,         wavelet};
}
