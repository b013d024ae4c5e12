// The entropy stage of codes of fixed width: each code's kind as decisions that depend on how large those
// before it were, beside bits that are as good as random, as docs/wire-format.md lays them out. No include
// guard by design: included inside each level's namespace, after deadzone_bits.h and range_coder.h.

constexpr size_t kPiece = 1024;  // elements between two looks at the room that is left

// Probabilities that a decision says yes; one in the middle of the tree has the digits before it, after a 1,
// as its place.
template <int kBits>
struct CodeModel {
  static constexpr unsigned kDigits = kBits == 2 ? 1 : 3;  // of a kind
  uint16_t places[13][1 << kDigits];
  uint32_t nearby = 0;

  CodeModel() {
    for (auto &places_of_class : places)
      for (uint16_t &p : places_of_class) p = 1u << kProbabilityBits >> 1;
  }
  uint16_t *now() { return places[nearby ? 32 - __builtin_clz(nearby) : 0]; }
  void see(uint32_t magnitude) {
    nearby += 8 * magnitude;
    nearby -= nearby >> 2;
  }
};

// Whether a block's codes mean something; scales have been checked, or come from an encoder.
inline bool has_codes(const uint8_t *scales, size_t block, int scale_bytes) {
  if (scale_bytes == 1) return scales[block] != 0 && scales[block] != GF_LOG4_NONFINITE;
  const uint32_t m = load_u32(scales + 4 * block);
  return m != 0 && m < GF_INF_BITS;
}

// Calls `visit(begin, count)` for the elements that have codes, a piece at a time, until it says no.
template <class Run, class Visit>
inline bool each_piece(const Run &run, Visit visit) {
  for (size_t begin = 0, block = 0; begin < run.n; begin += run.block, ++block) {
    if (!has_codes(run.scales, block, run.scale_bytes)) continue;
    const size_t end = run.n - begin < run.block ? run.n : begin + run.block;
    for (size_t at = begin; at < end; at += kPiece)
      if (!visit(at, end - at < kPiece ? end - at : kPiece)) return false;
  }
  return true;
}

template <int kBits, bool kLog4>
inline bool squeeze_codes_of(CodeSqueeze *run) {
  RangeEncoder e(run->coded);
  BitWriter raw(run->raw);
  CodeModel<kBits> model;
  const bool fits = each_piece(*run, [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) {
      const uint32_t code = get_code<kBits>(run->codes, i);
      const int32_t value = signed_code<kBits>(code);
      const uint32_t negative = kLog4 ? code >> 3 : value < 0;
      const uint32_t magnitude = kLog4 ? code & 7u : (uint32_t)(negative ? -value : value);
      const unsigned kind = kBits == 8 && magnitude ? 32 - __builtin_clz(magnitude) : magnitude;
      uint16_t *const p = model.now();
      unsigned node = 1;
      for (unsigned digit = model.kDigits; digit-- > 0;) {
        const unsigned yes = kind >> digit & 1u;
        e.put(yes, p + node);
        node = 2 * node + yes;
      }
      if (kBits == 8) {
        const uint32_t top = 1u << kind >> 1;  // the leading one, for which the sign stands
        raw.put(magnitude - top + negative * top, kind);
      } else {
        raw.put(negative, kind != 0);
      }
      model.see(magnitude);
    }
    return e.bytes() + raw.bytes() <= run->most;
  });
  if (!fits) return false;
  run->coded_bytes = e.finish();
  run->raw_bytes = raw.finish();
  return true;
}

// False once the streams take more than `most` bytes.
inline bool squeeze_codes(CodeSqueeze *run) {
  if (run->bits == 8) return squeeze_codes_of<8, false>(run);
  if (run->bits == 2) return squeeze_codes_of<2, false>(run);
  return run->scale_bytes == 1 ? squeeze_codes_of<4, true>(run) : squeeze_codes_of<4, false>(run);
}

template <int kBits, bool kLog4>
inline bool unsqueeze_codes_of(const CodeUnsqueeze &run) {
  RangeDecoder d(run.coded, run.coded_bytes);
  BitReader raw(run.raw, run.raw_bytes);
  CodeModel<kBits> model;
  const bool there = each_piece(run, [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) {
      uint16_t *const p = model.now();
      unsigned node = 1;
      for (unsigned digit = 0; digit < model.kDigits; ++digit) node = 2 * node + d.get(p + node);
      const uint32_t kind = node - (1u << model.kDigits), top = kBits == 8 ? 1u << kind >> 1 : kind != 0;
      const uint32_t bits = raw.get(kBits == 8 ? kind : top);
      const uint32_t magnitude = kBits == 8 ? top | (bits & ~top) : kind;
      const uint32_t negative = (bits & top) != 0;
      put_code<kBits>(run.codes, i,
                      kLog4      ? magnitude | negative << 3
                      : negative ? 0u - magnitude
                                 : magnitude);
      model.see(magnitude);
    }
    return !raw.overrun();
  });
  return there && d.at_end() && raw.at_end();
}

// Codes go into zeros; false if no encoder writes what it reads.
inline bool unsqueeze_codes(const CodeUnsqueeze &run) {
  if (run.bits == 8) return unsqueeze_codes_of<8, false>(run);
  if (run.bits == 2) return unsqueeze_codes_of<2, false>(run);
  return run.scale_bytes == 1 ? unsqueeze_codes_of<4, true>(run) : unsqueeze_codes_of<4, false>(run);
}
