// topk: which elements are sent, found by three histograms of their magnitudes' bits, and the body. Each
// level provides, in `struct Simd`, what is done to eight elements at a time. No include guard by design:
// included inside each level's namespace, after index_codes.h and the level's Simd.

constexpr unsigned kTopkShifts[3] = {20, 10, 0};  // 31 bits in digits of 11, 10 and 10
constexpr size_t kTopkDigits = 2048;

// From which magnitude (as bits) on elements are sent; of those that have just it only `ties`, the first
// ones. Elements that are not finite are sent in any case.
struct TopkChoice {
  uint32_t threshold;
  size_t ties;
  size_t count;  // of all that are sent
  bool nonfinite;
};

// Calls visit(i, bits of the magnitude) for elements whose magnitude's bits are from `first` to `last`.
template <typename Visit>
inline void topk_each(const EncodeRun &run, uint32_t first, uint32_t last, Visit visit) {
  auto look = [&](size_t i) {
    const uint32_t a = gf_abs_bits(sum_at(run.x, run.residual, i));
    if (a >= first && a <= last) visit(i, a);
  };
  size_t i = 0;
  for (; i + 8 <= run.n; i += 8)
    for (uint32_t mask = Simd::topk_within(run, i, first, last); mask; mask &= mask - 1)
      look(i + (size_t)__builtin_ctz(mask));
  for (; i < run.n; ++i) look(i);
}

// The digit in which the `keep` largest end, from the top; `*keep` becomes how many of that digit are among
// them.
inline uint32_t topk_digit(const uint64_t *histogram, uint32_t top, size_t *keep) {
  uint32_t digit = top;
  while (histogram[digit] < *keep) *keep -= (size_t)histogram[digit--];
  return digit;
}

// Adds to a histogram of the magnitudes' first digits; returns how many elements are zero.
inline size_t topk_count(const EncodeRun &run, size_t begin, size_t end, uint64_t *histogram) {
  uint32_t tables[4][kTopkDigits] = {};  // neighbours are often alike, and would wait for each other in one
  uint32_t digits[8];
  size_t zeros = 0, i = begin;
  auto count_one = [&] {
    const uint32_t a = gf_abs_bits(sum_at(run.x, run.residual, i));
    zeros += a == 0;
    ++tables[i % 4][a >> kTopkShifts[0]];
    ++i;
  };
  while (i + 8 <= end) {
    if (Simd::topk_digits(run, i, kTopkShifts[0], digits, &zeros)) {
      for (size_t k = 0; k < 8; ++k) ++tables[k % 4][digits[k]];
      i += 8;
    } else {
      for (int k = 0; k < 8; ++k) count_one();
    }
  }
  while (i < end) count_one();
  for (size_t d = 0; d < kTopkDigits; ++d)
    histogram[d] += (uint64_t)tables[0][d] + tables[1][d] + tables[2][d] + tables[3][d];
  return zeros;
}

inline TopkChoice topk_choose(const EncodeRun &run, size_t keep) {
  constexpr uint32_t finite_digits = GF_INF_BITS >> kTopkShifts[0];
  constexpr size_t tile = 1u << 30;  // whose counts fit 32 bits
  uint64_t histogram[kTopkDigits] = {};
  size_t zeros = 0, sick = 0;
  for (size_t begin = 0; begin < run.n; begin += tile)
    zeros += topk_count(run, begin, run.n - begin < tile ? run.n : begin + tile, histogram);
  for (size_t d = finite_digits; d < kTopkDigits; ++d) sick += (size_t)histogram[d];
  const size_t candidates = run.n - zeros - sick;
  if (keep >= candidates) return {1, run.n, candidates + sick, sick > 0};
  TopkChoice choice = {0, keep, keep + sick, sick > 0};
  choice.threshold = topk_digit(histogram, finite_digits - 1, &choice.ties) << kTopkShifts[0];
  for (int level = 1; level < 3; ++level) {
    const unsigned shift = kTopkShifts[level], above = kTopkShifts[level - 1];
    const uint32_t from = choice.threshold;
    memset(histogram, 0, sizeof histogram);
    topk_each(run, from ? from : 1, from + ((1u << above) - 1),
              [&](size_t, uint32_t a) { ++histogram[(a - from) >> shift]; });
    choice.threshold += topk_digit(histogram, (1u << (above - shift)) - 1, &choice.ties) << shift;
  }
  return choice;
}

// Writes the body but for its filling; returns its bytes.
inline size_t encode_topk(const EncodeRun &run, size_t keep, bool *nonfinite) {
  TopkChoice choice = topk_choose(run, keep);
  *nonfinite = choice.nonfinite;
  const uint64_t count = choice.count;
  memcpy(run.codes, &count, sizeof count);
  uint8_t *value = run.codes + GF_TOPK_FRONT_BYTES;
  IndexWriter writer(value + 4 * choice.count, run.n, count);
  auto take = [&](size_t i) {
    const float v = sum_at(run.x, run.residual, i);
    const uint32_t a = gf_abs_bits(v);
    const bool tie = a == choice.threshold;
    if (a < choice.threshold || (tie && choice.ties == 0)) {
      if (run.residual) run.residual[i] = v;
      return;
    }
    choice.ties -= tie;
    if (run.residual && a < GF_INF_BITS) run.residual[i] = 0.0f;
    store_u32(value, a > GF_INF_BITS ? GF_CANONICAL_NAN : gf_bits(v));
    value += 4;
    writer.put(i);
  };
  size_t i = 0;
  for (; i + 8 <= run.n; i += 8) {
    if (Simd::topk_within(run, i, choice.threshold, 0x7fffffffu)) {
      for (size_t k = i; k < i + 8; ++k) take(k);
    } else if (run.residual) {
      Simd::topk_owe(run, i);
    }
  }
  for (; i < run.n; ++i) take(i);
  return GF_TOPK_FRONT_BYTES + 4 * choice.count + writer.finish();
}

struct TopkBody {
  const uint8_t *values;
  uint64_t count;
  size_t front;  // bytes before the indices
};

inline bool topk_open(const uint8_t *body, size_t bytes, size_t n, TopkBody *b) {
  memcpy(&b->count, body, sizeof b->count);
  b->values = body + GF_TOPK_FRONT_BYTES;
  if (b->count > n || b->count > (bytes - GF_TOPK_FRONT_BYTES) / 4) return false;
  b->front = GF_TOPK_FRONT_BYTES + 4 * (size_t)b->count;
  return b->front < bytes;
}

// Whether an encoder can have made this body of at least GF_TOPK_FRONT_BYTES.
inline bool check_topk(const uint8_t *body, size_t bytes, size_t n, bool *nonfinite) {
  TopkBody b;
  if (!topk_open(body, bytes, n, &b)) return false;
  IndexReader reader(body + b.front, bytes - b.front, n, b.count);
  bool valid = true, sick = false;
  for (uint64_t i = 0; valid && i < b.count; ++i) {
    const uint32_t u = load_u32(b.values + 4 * i), a = u & 0x7fffffffu;
    sick |= a >= GF_INF_BITS;
    reader.get();
    valid = reader.valid() && a != 0 && (a <= GF_INF_BITS || u == GF_CANONICAL_NAN);
  }
  *nonfinite = sick;
  if (!valid || !reader.valid()) return false;
  const size_t code = reader.bytes(), least = n / GF_TOPK_ELEMENTS_PER_BYTE;
  const size_t used = b.front + code;
  if (code == 0 || bytes != (used > least ? used : least)) return false;
  for (size_t i = used; i < bytes; ++i) valid &= body[i] == 0;
  return valid;
}

// Of a body that has been checked.
inline void decode_topk(const uint8_t *body, size_t bytes, float *out, size_t n, bool add) {
  TopkBody b;
  if (!topk_open(body, bytes, n, &b)) return;
  if (!add && n) memset(out, 0, n * sizeof(float));
  IndexReader reader(body + b.front, bytes - b.front, n, b.count);
  for (uint64_t i = 0; i < b.count; ++i)
    put(out, (size_t)reader.get(), gf_float(load_u32(b.values + 4 * i)), add);
}
