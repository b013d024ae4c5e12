#include "ldpc_plan.hpp"

#include <algorithm>

namespace gradflow {
namespace {

enum State : uint8_t { kOpen, kPivot, kInactive };
constexpr uint16_t kNone = UINT16_MAX;

void add_vector(uint64_t *to, const uint64_t *from, size_t words) {
  for (size_t w = 0; w < words; ++w) to[w] ^= from[w];
}

// The first bit from `from` on, or `end`.
uint32_t next_bit(const uint64_t *v, uint32_t from, uint32_t end) {
  for (uint32_t w = from / 64; w * 64 < end; ++w) {
    uint64_t bits = v[w];
    if (w == from / 64) bits &= ~0ull << from % 64;
    if (bits) return w * 64 + (uint32_t)__builtin_ctzll(bits);
  }
  return end;
}

}  // namespace

void LdpcPlanner::plan(const LdpcGraph &graph, const uint8_t *known, bool schedule, LdpcPlan *out) {
  collect(graph, known);
  out->solvable = false;
  out->inactive = 0;
  out->deficit = unknown_.size() > graph.m ? (uint32_t)unknown_.size() - graph.m : 0;
  if (out->deficit) return;
  peel(graph);
  eliminate(schedule);
  out->inactive = inactive_count_;
  out->deficit = inactive_count_ - rank_;
  out->solvable = out->deficit == 0;
  if (!out->solvable || !schedule) return;
  substitute();
  write(graph, out);
}

void LdpcPlanner::collect(const LdpcGraph &graph, const uint8_t *known) {
  rows_ = graph.m;
  unknown_.clear();
  for (uint32_t c = 0; c < graph.k + graph.m; ++c)
    if (!known[c]) unknown_.push_back((uint16_t)c);
  if (unknown_.size() > graph.m) return;
  degree_.assign(graph.m, 0);
  sum_.assign(graph.m, 0);
  for (uint32_t u = 0; u < unknown_.size(); ++u) {
    for (uint32_t e = graph.column_begin[unknown_[u]]; e < graph.column_begin[unknown_[u] + 1]; ++e) {
      ++degree_[graph.column_rows[e]];
      sum_[graph.column_rows[e]] ^= u;
    }
  }
  row_begin_.assign(graph.m + 1, 0);
  for (uint32_t i = 0; i < graph.m; ++i) row_begin_[i + 1] = row_begin_[i] + degree_[i];
  row_unknowns_.resize(row_begin_[graph.m]);
  // Filled from the ends; row_begin_[i + 1] is where row i begins meanwhile.
  std::vector<uint32_t> &at = row_begin_;
  for (uint32_t i = graph.m; i > 0; --i) at[i] = at[i - 1];
  for (uint32_t u = 0; u < unknown_.size(); ++u)
    for (uint32_t e = graph.column_begin[unknown_[u]]; e < graph.column_begin[unknown_[u] + 1]; ++e)
      row_unknowns_[at[graph.column_rows[e] + 1]++] = (uint16_t)u;
}

void LdpcPlanner::settle(const LdpcGraph &graph, uint32_t u) {
  for (uint32_t e = graph.column_begin[unknown_[u]]; e < graph.column_begin[unknown_[u] + 1]; ++e) {
    const uint16_t row = graph.column_rows[e];
    sum_[row] ^= u;
    if (--degree_[row] == 1) ready_.push_back(row);
  }
}

void LdpcPlanner::peel(const LdpcGraph &graph) {
  const size_t count = unknown_.size();
  pivot_row_.assign(count, kNone);
  state_.assign(count, kOpen);
  used_.assign(graph.m, 0);
  order_.clear();
  inactive_.clear();
  ready_.clear();
  for (uint32_t i = 0; i < graph.m; ++i)
    if (degree_[i] == 1) ready_.push_back((uint16_t)i);
  while (order_.size() + inactive_.size() < count) {
    if (ready_.empty()) inactivate(graph);
    if (ready_.empty()) continue;
    const uint16_t row = ready_.back();
    ready_.pop_back();
    if (degree_[row] != 1) continue;
    const uint32_t u = sum_[row];
    pivot_row_[u] = row;
    state_[u] = kPivot;
    used_[row] = 1;
    order_.push_back((uint16_t)u);
    settle(graph, u);
  }
  inactive_count_ = (uint32_t)inactive_.size();
}

// Of the row with the fewest open symbols all but one are put off: then that one can be had from the row.
// Every column has a row, so while a symbol is open there is such a row.
void LdpcPlanner::inactivate(const LdpcGraph &graph) {
  uint32_t best = 0, fewest = UINT32_MAX;
  for (uint32_t i = 0; i < graph.m; ++i) {
    if (degree_[i] < 2 || degree_[i] >= fewest) continue;
    best = i;
    fewest = degree_[i];
    if (fewest == 2) break;
  }
  for (uint32_t e = row_begin_[best]; degree_[best] > 1; ++e) {
    const uint32_t u = row_unknowns_[e];
    if (state_[u] != kOpen) continue;
    state_[u] = kInactive;
    inactive_.push_back((uint16_t)u);
    settle(graph, u);
  }
}

// Each unknown is a sum of syndromes, which an op works out, and of inactive ones, which its vector names.
// Rows that peeling did not use then speak of inactive ones alone.
void LdpcPlanner::eliminate(bool schedule) {
  const uint32_t count = inactive_count_;
  words_ = (count + 63) / 64;
  rank_ = 0;
  ops_.clear();
  entries_.clear();
  bits_.assign(unknown_.size() * words_, 0);
  for (uint32_t i = 0; i < count; ++i) vector_of(inactive_[i])[i / 64] |= 1ull << i % 64;
  for (const uint16_t u : order_) {
    const uint16_t row = pivot_row_[u];
    begin(row);
    for (uint32_t e = row_begin_[row]; e < row_begin_[row + 1]; ++e) {
      const uint16_t other = row_unknowns_[e];
      if (other == u) continue;
      add_vector(vector_of(u), vector_of(other), words_);
      if (state_[other] == kPivot) entries_.push_back(slot(other));
    }
    end(slot(u));
  }
  basis_.assign((size_t)count * words_, 0);
  leading_.assign(count, 0);
  work_.resize(words_);
  for (uint32_t row = 0; row < rows_ && rank_ < count; ++row) {
    if (used_[row] || row_begin_[row] == row_begin_[row + 1]) continue;
    std::fill(work_.begin(), work_.end(), 0);
    begin((uint16_t)row);
    for (uint32_t e = row_begin_[row]; e < row_begin_[row + 1]; ++e) {
      const uint16_t other = row_unknowns_[e];
      add_vector(work_.data(), vector_of(other), words_);
      if (state_[other] == kPivot) entries_.push_back(slot(other));
    }
    uint32_t lead = next_bit(work_.data(), 0, count);
    for (; lead < count && leading_[lead]; lead = next_bit(work_.data(), lead + 1, count)) {
      add_vector(work_.data(), basis_.data() + (size_t)lead * words_, words_);
      entries_.push_back(slot(inactive_[lead]));
    }
    if (lead == count) {
      entries_.resize(begun_);  // says nothing new
      continue;
    }
    leading_[lead] = 1;
    std::copy(work_.begin(), work_.end(), basis_.data() + (size_t)lead * words_);
    end(slot(inactive_[lead]));
    ++rank_;
  }
  if (!schedule) ops_.clear();
}

void LdpcPlanner::substitute() {
  for (uint32_t i = inactive_count_; i-- > 0;) {
    const uint64_t *const v = basis_.data() + (size_t)i * words_;
    begin(slot(inactive_[i]));
    for (uint32_t b = next_bit(v, i + 1, inactive_count_); b < inactive_count_;
         b = next_bit(v, b + 1, inactive_count_))
      entries_.push_back(slot(inactive_[b]));
    end(slot(inactive_[i]));
  }
  for (const uint16_t u : order_) {
    if (next_bit(vector_of(u), 0, inactive_count_) == inactive_count_) continue;
    const uint16_t row = pivot_row_[u];
    begin(row);
    for (uint32_t e = row_begin_[row]; e < row_begin_[row + 1]; ++e)
      if (row_unknowns_[e] != u) entries_.push_back(slot(row_unknowns_[e]));
    end(slot(u));
  }
}

void LdpcPlanner::begin(uint16_t first) {
  begun_ = entries_.size();
  entries_.push_back(first);
}

void LdpcPlanner::end(uint16_t target) {
  ops_.push_back({target, (uint16_t)(entries_.size() - begun_), (uint32_t)begun_});
}

// Backwards from the source symbols, so that only what they need is worked out: parity need not be had back.
void LdpcPlanner::write(const LdpcGraph &graph, LdpcPlan *out) {
  StripProgram &program = out->program;
  program.slots = rows_ + (uint32_t)unknown_.size();
  program.ops.clear();
  program.entries.clear();
  program.outputs.clear();
  live_.assign(program.slots, 0);
  for (uint32_t u = 0; u < unknown_.size() && unknown_[u] < graph.k; ++u) {
    program.outputs.push_back(slot(u));
    live_[slot(u)] = 1;
  }
  size_t kept = ops_.size();
  for (size_t i = ops_.size(); i-- > 0;) {
    const StripOp op = ops_[i];
    if (!live_[op.target]) continue;
    live_[op.target] = 0;
    for (uint32_t e = op.begin; e < op.begin + op.count; ++e) live_[entries_[e]] = 1;
    // One entry that is the target itself: nothing to do.
    if (op.count == 1 && entries_[op.begin] == op.target) continue;
    ops_[--kept] = op;
  }
  for (size_t i = kept; i < ops_.size(); ++i) {
    StripOp op = ops_[i];
    const auto from = entries_.begin() + op.begin;
    op.begin = (uint32_t)program.entries.size();
    program.entries.insert(program.entries.end(), from, from + op.count);
    program.ops.push_back(op);
  }
  out->rows.assign(live_.begin(), live_.begin() + rows_);
  out->columns.assign(graph.k + graph.m, 0);
  for (uint32_t i = 0; i < rows_; ++i)
    if (out->rows[i])
      for (uint32_t e = graph.row_begin[i]; e < graph.row_begin[i + 1]; ++e)
        out->columns[graph.row_columns[e]] = 1;
}

}  // namespace gradflow
