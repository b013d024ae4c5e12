// How to decode: which XORs of which rows give the missing symbols, by the structure of the code alone.
#ifndef GF_COMM_LDPC_PLAN_HPP
#define GF_COMM_LDPC_PLAN_HPP

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "ldpc_strips.hpp"

namespace gradflow {

// The parity check matrix, m rows and n = k + m columns, each way in compressed form, ascending. Row i says
// that the XOR of its symbols is zero.
struct LdpcGraph {
  uint32_t k = 0, m = 0;
  std::vector<uint32_t> column_begin;  // n + 1
  std::vector<uint16_t> column_rows;
  std::vector<uint32_t> row_begin;  // m + 1
  std::vector<uint16_t> row_columns;
};

// Slots 0 to m - 1 begin as syndromes: the XOR of a row's known symbols. `program` turns them into the
// missing ones.
struct LdpcPlan {
  bool solvable = false;
  uint32_t deficit = 0;       // unknown symbols less rank
  uint32_t inactive = 0;      // symbols that elimination, not peeling, had to find: 0 if peeling was enough
  std::vector<uint8_t> rows;  // whether the syndrome of a row is needed
  std::vector<uint8_t> columns;  // whether one of these rows has the column
  StripProgram program;
};

// Peeling, with inactivation where it gets stuck, and elimination of what is then left (docs/ldpc.md). Keeps
// its room from call to call. May throw bad_alloc.
class LdpcPlanner {
 public:
  // known: n flags. Without `schedule` only solvable, deficit and inactive are worked out.
  void plan(const LdpcGraph &graph, const uint8_t *known, bool schedule, LdpcPlan *out);

 private:
  void collect(const LdpcGraph &graph, const uint8_t *known);
  void peel(const LdpcGraph &graph);
  void settle(const LdpcGraph &graph, uint32_t u);
  void inactivate(const LdpcGraph &graph);
  void eliminate(bool schedule);
  void substitute();
  void write(const LdpcGraph &graph, LdpcPlan *out);
  // An op: the slots between the two are its entries.
  void begin(uint16_t first);
  void end(uint16_t target);
  uint64_t *vector_of(uint32_t u) { return bits_.data() + (size_t)u * words_; }
  uint16_t slot(uint32_t u) const { return (uint16_t)(rows_ + u); }

  uint32_t rows_ = 0, words_ = 0, rank_ = 0, inactive_count_ = 0;
  std::vector<uint16_t> unknown_;    // ESIs, ascending; what follows counts in them
  std::vector<uint32_t> row_begin_;  // unknowns of each row
  std::vector<uint16_t> row_unknowns_;
  std::vector<uint32_t> degree_, sum_;      // of a row's open unknowns: how many, and the XOR of them
  std::vector<uint16_t> pivot_row_;         // of an unknown that peeling found
  std::vector<uint8_t> state_;              // of an unknown
  std::vector<uint8_t> used_;               // rows that are some unknown's pivot_row_
  std::vector<uint16_t> ready_;             // rows with one open unknown
  std::vector<uint16_t> order_, inactive_;  // unknowns
  std::vector<uint64_t> bits_, work_;       // which inactive ones are part of an unknown
  std::vector<uint64_t> basis_;             // rows in echelon form, by their first bit
  std::vector<uint8_t> leading_;            // whether there is one
  std::vector<StripOp> ops_;
  std::vector<uint16_t> entries_;
  std::vector<uint8_t> live_;  // slots that later ops read
  size_t begun_ = 0;
};

}  // namespace gradflow

#endif
