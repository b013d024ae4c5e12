// The shared memory of one node: slots for chunks and the counters beside them (docs/architecture.md,
// "States"). Every counter has one writer and its own cache line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol.hpp"

namespace gf {

class Shared {
 public:
  static constexpr size_t kLine = 64;
  static constexpr size_t kEnergies = 2048;  // the most tensors in one chunk whose energies fit a slot

  static size_t bytes(int ranks, int slots, size_t chunk_bytes) {
    return lines(ranks, slots) * kLine + (static_cast<size_t>(ranks) + 1) * slots * stride(chunk_bytes);
  }

  Shared() = default;
  Shared(void *base, int ranks, int slots, size_t chunk_bytes)
      : base_(static_cast<uint8_t *>(base)),
        ranks_(ranks),
        slots_(slots),
        stride_(stride(chunk_bytes)),
        chunk_(up(chunk_bytes)) {
    data_ = base_ + lines(ranks, slots) * kLine;
  }
  explicit operator bool() const { return base_ != nullptr; }

  uint64_t staged(int rank, uint64_t g) const { return load(line(rank, g)); }
  void set_staged(int rank, uint64_t g) { store(line(rank, g), g + 1); }
  uint64_t copied(int rank, uint64_t g) const { return load(line(ranks_ + rank, g)); }
  void set_copied(int rank, uint64_t g) { store(line(ranks_ + rank, g), g + 1); }
  uint64_t reduced(uint64_t g) const { return load(line(2 * ranks_, g)); }
  void set_reduced(uint64_t g) { store(line(2 * ranks_, g), g + 1); }
  uint64_t result_ready(uint64_t g) const { return load(line(2 * ranks_ + 1, g)); }
  void set_result(uint64_t g) { store(line(2 * ranks_ + 1, g), g + 1); }

  // True if the slot of chunk g no longer holds what `counter` counts: chunk g - slots has passed.
  bool passed(uint64_t counter, uint64_t g) const {
    return g < static_cast<uint64_t>(slots_) || counter >= g + 1 - slots_;
  }

  uint8_t *stage(int rank, uint64_t g) const { return data_ + (rank * slots_ + g % slots_) * stride_; }
  uint8_t *result(uint64_t g) const { return stage(ranks_, g); }
  uint8_t *energies(uint64_t g) const { return result(g) + chunk_; }

 private:
  static size_t up(size_t n) { return (n + kLine - 1) / kLine * kLine; }
  static size_t stride(size_t chunk_bytes) { return up(chunk_bytes) + kEnergies * sizeof(Energy); }
  static size_t lines(int ranks, int slots) { return (2 * static_cast<size_t>(ranks) + 2) * slots; }
  uint64_t *line(int row, uint64_t g) const {
    return reinterpret_cast<uint64_t *>(base_ + (row * slots_ + g % slots_) * kLine);
  }
  static uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  static void store(uint64_t *p, uint64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }

  uint8_t *base_ = nullptr;
  uint8_t *data_ = nullptr;
  int ranks_ = 0;
  int slots_ = 0;
  size_t stride_ = 0;
  size_t chunk_ = 0;
};

}  // namespace gf
