// XORs over symbols, strip by strip: a strip of every symbol at a time, so that what is worked on stays in
// the caches.
#ifndef GF_COMM_LDPC_STRIPS_HPP
#define GF_COMM_LDPC_STRIPS_HPP

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace gradflow {

constexpr size_t kStripBytes = 128;     // two lines of the cache: fewer passes over the lists
constexpr uint32_t kTileColumns = 256;  // columns side by side in the first-level cache, 32 KiB

// The part of a row that lies in one tile.
struct StripRow {
  uint16_t row, count;
  uint32_t begin;  // in entries
};

// Rows of XORs over columns, cut into tiles. In a tile rows of as many entries stand together, so that the
// processor foresees how long each loop is.
struct StripLists {
  std::vector<uint32_t> tile_column;  // first column of each tile, and the end
  std::vector<uint32_t> tile_row;     // its first StripRow, and the end
  std::vector<StripRow> rows;
  std::vector<uint16_t> entries;  // columns, counted from the tile's first
};

// What follows on slots: slot[target] = XOR of slots, in order.
struct StripOp {
  uint16_t target, count;
  uint32_t begin;  // in entries
};

struct StripProgram {
  uint32_t slots = 0;
  std::vector<StripOp> ops;
  std::vector<uint16_t> entries;
  std::vector<uint16_t> outputs;  // slots that are written out, in order
};

// The loops of one instruction level.
struct StripLevel {
  const char *name;
  // Slot of each row: XOR of its columns of the tile, or with `first` replaced by it.
  void (*accumulate)(uint8_t *slots, const uint8_t *tile, const StripRow *rows, size_t count,
                     const uint16_t *entries, bool first);
  void (*run)(uint8_t *slots, const StripOp *ops, size_t count, const uint16_t *entries);
  // One strip of each symbol that is wanted, `offset` bytes in; null symbols are zeros. `ahead`: bytes behind
  // the strip that will be asked for next.
  void (*gather)(uint8_t *tile, const uint8_t *const *symbols, const uint8_t *wanted, size_t count,
                 size_t offset, size_t ahead);
  void (*scatter)(const uint8_t *slots, const uint16_t *outputs, size_t count, uint8_t *const *out,
                  size_t offset);
};

// What this machine can run, best first; null-terminated.
const StripLevel *const *strip_levels();
const StripLevel &strip_level();
// False if the machine lacks it; "auto" takes the best.
bool set_strip_level(const char *name);

struct StripRun {
  const StripLists *lists;
  size_t tiles;                   // how many of them; columns beyond count as zero
  const uint8_t *rows, *columns;  // flags of what is needed; null: all
  const StripProgram *program;
  const uint8_t *const *symbols;  // by column; null: zeros
  uint32_t short_column;          // has short_bytes only, then zeros
  uint8_t *const *out;            // by output
  uint32_t short_output;          // gets short_bytes only
  size_t symbol_bytes, short_bytes;
};

// False where memory is short; then nothing was written.
bool run_strips(const StripRun &run) noexcept;

}  // namespace gradflow

#endif
