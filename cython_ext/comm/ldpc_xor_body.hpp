// The loops of one instruction level: kVector is the width of its registers in bytes. No include guard by
// design: included inside each level's namespace.

static_assert(kStripBytes % kVector == 0, "whole registers");
constexpr size_t kParts = kStripBytes / kVector;

typedef uint8_t Vector __attribute__((vector_size(kVector), may_alias));
// Symbols lie at any address.
typedef uint8_t LooseVector __attribute__((vector_size(kVector), aligned(1), may_alias));

struct Strip {
  Vector part[kParts];
};

inline Strip load(const uint8_t *p) {
  Strip s;
  for (size_t i = 0; i < kParts; ++i) s.part[i] = ((const Vector *)p)[i];
  return s;
}

inline void store(uint8_t *p, const Strip &s) {
  for (size_t i = 0; i < kParts; ++i) ((Vector *)p)[i] = s.part[i];
}

inline Strip zeros() {
  Strip s;
  for (size_t i = 0; i < kParts; ++i) s.part[i] = Vector{};
  return s;
}

inline void add(Strip *sum, const uint8_t *p) {
  for (size_t i = 0; i < kParts; ++i) sum->part[i] ^= ((const Vector *)p)[i];
}

inline Strip sum_of(Strip sum, const uint8_t *base, const uint16_t *entries, size_t count) {
  for (size_t j = 0; j < count; ++j) add(&sum, base + entries[j] * kStripBytes);
  return sum;
}

void accumulate(uint8_t *slots, const uint8_t *tile, const StripRow *rows, size_t count,
                const uint16_t *entries, bool first) {
  for (size_t r = 0; r < count; ++r) {
    uint8_t *const slot = slots + rows[r].row * kStripBytes;
    store(slot, sum_of(first ? zeros() : load(slot), tile, entries + rows[r].begin, rows[r].count));
  }
}

void run(uint8_t *slots, const StripOp *ops, size_t count, const uint16_t *entries) {
  for (size_t i = 0; i < count; ++i)
    store(slots + ops[i].target * kStripBytes, sum_of(zeros(), slots, entries + ops[i].begin, ops[i].count));
}

void gather(uint8_t *tile, const uint8_t *const *symbols, const uint8_t *wanted, size_t count, size_t offset,
            size_t ahead) {
  for (size_t c = 0; c < count; ++c, tile += kStripBytes) {
    if (wanted && !wanted[c]) continue;
    const uint8_t *const p = symbols[c];
    if (!p) {
      store(tile, zeros());
      continue;
    }
    __builtin_prefetch(p + offset + ahead, 0, 2);
    for (size_t i = 0; i < kParts; ++i) ((Vector *)tile)[i] = ((const LooseVector *)(p + offset))[i];
  }
}

void scatter(const uint8_t *slots, const uint16_t *outputs, size_t count, uint8_t *const *out,
             size_t offset) {
  for (size_t j = 0; j < count; ++j) {
    const Vector *const from = (const Vector *)(slots + outputs[j] * kStripBytes);
    for (size_t i = 0; i < kParts; ++i) ((LooseVector *)(out[j] + offset))[i] = from[i];
  }
}
