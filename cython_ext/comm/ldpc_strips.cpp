#include "ldpc_strips.hpp"

#include <new>
#include <string.h>

#include <algorithm>
#include <atomic>

namespace gradflow {

extern const StripLevel kPortableStrips;
#if defined(__x86_64__)
extern const StripLevel kAvx2Strips;
extern const StripLevel kAvx512Strips;
#endif

namespace {

struct Available {
  const StripLevel *levels[4] = {nullptr, nullptr, nullptr, nullptr};
  Available() {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) levels[n++] = &kAvx512Strips;
    if (avx2) levels[n++] = &kAvx2Strips;
#endif
    levels[n] = &kPortableStrips;
  }
};

std::atomic<const StripLevel *> current{nullptr};

// Of one run: room for a tile and the slots of a strip, and what of the lists is needed.
class Runner {
 public:
  explicit Runner(const StripRun &run)
      : run_(run),
        level_(strip_level()),
        room_((kTileColumns + (size_t)run.program->slots + 1) * kStripBytes),
        symbols_(run.symbols, run.symbols + run.lists->tile_column[run.tiles]) {
    tile_ = (uint8_t *)(((uintptr_t)room_.data() + kStripBytes - 1) / kStripBytes * kStripBytes);
    slots_ = tile_ + kTileColumns * kStripBytes;
    if (!run.rows) return;
    for (size_t t = 0; t < run.tiles; ++t) {
      ends_.push_back(rows_.size());
      for (size_t r = run.lists->tile_row[t]; r < run.lists->tile_row[t + 1]; ++r)
        if (run.rows[run.lists->rows[r].row]) rows_.push_back(run.lists->rows[r]);
    }
    ends_.push_back(rows_.size());
  }

  void go() {
    const size_t bytes = run_.symbol_bytes;
    // The last strip overlaps the one before where the bytes do not fill it: the same is written twice.
    for (size_t at = 0; at < bytes; at += kStripBytes) {
      const size_t offset = bytes < kStripBytes ? 0 : std::min(at, bytes - kStripBytes);
      strip(offset, std::min(bytes, kStripBytes));
    }
  }

 private:
  void strip(size_t offset, size_t width) {
    for (size_t t = 0; t < run_.tiles; ++t) {
      const uint32_t first = run_.lists->tile_column[t], count = run_.lists->tile_column[t + 1] - first;
      gather(first, count, offset, width);
      if (run_.rows) {
        accumulate(t, rows_.data() + ends_[t], ends_[t + 1] - ends_[t]);
      } else {
        const uint32_t *const ends = &run_.lists->tile_row[t];
        accumulate(t, run_.lists->rows.data() + ends[0], ends[1] - ends[0]);
      }
    }
    const StripProgram &program = *run_.program;
    level_.run(slots_, program.ops.data(), program.ops.size(), program.entries.data());
    scatter(offset, width);
  }

  void accumulate(size_t t, const StripRow *rows, size_t count) {
    level_.accumulate(slots_, tile_, rows, count, run_.lists->entries.data(), t == 0);
  }

  void gather(uint32_t first, uint32_t count, size_t offset, size_t width) {
    const uint32_t odd = run_.short_column;
    const bool ends = odd - first < count && offset + width > run_.short_bytes;
    const uint8_t *const p = ends ? symbols_[odd] : nullptr;
    if (ends) symbols_[odd] = nullptr;
    const uint8_t *const wanted = run_.columns ? run_.columns + first : nullptr;
    if (width == kStripBytes) {
      level_.gather(tile_, symbols_.data() + first, wanted, count, offset, 2 * kStripBytes - 1);
    } else {
      for (uint32_t c = 0; c < count; ++c) copy(tile_ + c * kStripBytes, symbols_[first + c], width);
    }
    if (!ends) return;
    symbols_[odd] = p;
    const size_t left = run_.short_bytes > offset ? run_.short_bytes - offset : 0;
    copy(tile_ + (odd - first) * kStripBytes, p ? p + offset : p, left);
  }

  // The rest of the strip is zeros.
  static void copy(uint8_t *to, const uint8_t *from, size_t bytes) {
    memset(to, 0, kStripBytes);
    if (from && bytes) memcpy(to, from, bytes);
  }

  void scatter(size_t offset, size_t width) {
    const StripProgram &program = *run_.program;
    size_t full = width == kStripBytes ? program.outputs.size() : 0;
    if (full && run_.short_output == full - 1 && offset + width > run_.short_bytes) --full;
    level_.scatter(slots_, program.outputs.data(), full, run_.out, offset);
    for (size_t j = full; j < program.outputs.size(); ++j) {
      const size_t end = j == run_.short_output ? run_.short_bytes : run_.symbol_bytes;
      if (end > offset)
        memcpy(run_.out[j] + offset, slots_ + program.outputs[j] * kStripBytes,
               std::min(width, end - offset));
    }
  }

  const StripRun &run_;
  const StripLevel &level_;
  std::vector<uint8_t> room_;
  std::vector<const uint8_t *> symbols_;
  std::vector<StripRow> rows_;
  std::vector<size_t> ends_;
  uint8_t *tile_, *slots_;
};

}  // namespace

const StripLevel *const *strip_levels() {
  static const Available a;
  return a.levels;
}

const StripLevel &strip_level() {
  const StripLevel *l = current.load(std::memory_order_relaxed);
  if (!l) {
    l = strip_levels()[0];
    current.store(l, std::memory_order_relaxed);
  }
  return *l;
}

bool set_strip_level(const char *name) {
  for (const StripLevel *const *l = strip_levels(); *l; ++l) {
    if (strcmp(name, "auto") == 0 || strcmp(name, (*l)->name) == 0) {
      current.store(*l, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

bool run_strips(const StripRun &run) noexcept {
  if (run.program->outputs.empty()) return true;
  try {
    Runner(run).go();
  } catch (const std::bad_alloc &) {
    return false;
  }
  return true;
}

}  // namespace gradflow
