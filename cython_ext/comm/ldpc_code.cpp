#include <algorithm>
#include <new>

#include "ldpc.hpp"
#include "ldpc_prng.hpp"

namespace gradflow {
namespace {

// Rows of each source column: RFC 5170, section 6.2. Deviations, where its loops would not end: a column that
// is alone gets no second row entry, and n1 <= m is asked for beforehand.
std::vector<std::vector<uint16_t>> left_matrix(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed) {
  MinimalStandard random(seed);
  std::vector<std::vector<uint16_t>> columns(k);
  const auto has = [&](uint32_t row, uint32_t column) {
    const std::vector<uint16_t> &rows = columns[column];
    return std::find(rows.begin(), rows.end(), row) != rows.end();
  };
  const uint32_t total = n1 * k;
  // Every row as often as any other, up to one; what is left to choose from begins at `left`.
  std::vector<uint16_t> choices(total);
  for (uint32_t h = 0; h < total; ++h) choices[h] = (uint16_t)(h % m);
  uint32_t left = 0;
  for (uint32_t j = 0; j < k; ++j) {
    for (uint32_t h = 0; h < n1; ++h) {
      uint32_t i = left;
      while (i < total && has(choices[i], j)) ++i;
      if (i < total) {
        do i = left + random.below(total - left);
        while (has(choices[i], j));
        columns[j].push_back(choices[i]);
        choices[i] = choices[left++];
      } else {
        do i = random.below(m);
        while (has(i, j));
        columns[j].push_back((uint16_t)i);
      }
    }
  }
  // No row with fewer than two source symbols.
  std::vector<uint32_t> degree(m, 0);
  for (const std::vector<uint16_t> &rows : columns)
    for (const uint16_t row : rows) ++degree[row];
  for (uint32_t i = 0; i < m; ++i) {
    while (degree[i] < std::min(2u, k)) {
      uint32_t j;
      do j = random.below(k);
      while (has(i, j));
      columns[j].push_back((uint16_t)i);
      ++degree[i];
    }
  }
  return columns;
}

LdpcGraph graph_of(std::vector<std::vector<uint16_t>> columns, uint32_t m) {
  LdpcGraph g;
  g.k = (uint32_t)columns.size();
  g.m = m;
  // The staircase: RFC 5170, section 6.2.
  for (uint32_t i = 0; i < m; ++i) {
    columns.push_back({(uint16_t)i});
    if (i + 1 < m) columns.back().push_back((uint16_t)(i + 1));
  }
  g.column_begin.assign(1, 0);
  g.row_begin.assign(m + 1, 0);
  for (std::vector<uint16_t> &rows : columns) {
    std::sort(rows.begin(), rows.end());
    g.column_rows.insert(g.column_rows.end(), rows.begin(), rows.end());
    g.column_begin.push_back((uint32_t)g.column_rows.size());
    for (const uint16_t row : rows) ++g.row_begin[row + 1];
  }
  for (uint32_t i = 0; i < m; ++i) g.row_begin[i + 1] += g.row_begin[i];
  g.row_columns.resize(g.column_rows.size());
  std::vector<uint32_t> at(g.row_begin.begin(), g.row_begin.end() - 1);
  for (uint32_t c = 0; c < columns.size(); ++c)
    for (const uint16_t row : columns[c]) g.row_columns[at[row]++] = (uint16_t)c;
  return g;
}

// Tiles of source columns, then those of parity.
StripLists lists_of(const LdpcGraph &g) {
  StripLists lists;
  for (uint32_t c = 0; c < g.k; c += kTileColumns) lists.tile_column.push_back(c);
  for (uint32_t c = g.k; c < g.k + g.m; c += kTileColumns) lists.tile_column.push_back(c);
  lists.tile_column.push_back(g.k + g.m);
  std::vector<uint32_t> at(g.row_begin.begin(), g.row_begin.end() - 1);
  for (size_t t = 0; t + 1 < lists.tile_column.size(); ++t) {
    const uint32_t first = lists.tile_column[t], end = lists.tile_column[t + 1];
    lists.tile_row.push_back((uint32_t)lists.rows.size());
    for (uint32_t i = 0; i < g.m; ++i) {
      StripRow row = {(uint16_t)i, 0, (uint32_t)lists.entries.size()};
      for (; at[i] < g.row_begin[i + 1] && g.row_columns[at[i]] < end; ++at[i], ++row.count)
        lists.entries.push_back((uint16_t)(g.row_columns[at[i]] - first));
      if (row.count || t == 0) lists.rows.push_back(row);
    }
    std::stable_sort(lists.rows.begin() + lists.tile_row.back(), lists.rows.end(),
                     [](const StripRow &a, const StripRow &b) { return a.count < b.count; });
  }
  lists.tile_row.push_back((uint32_t)lists.rows.size());
  return lists;
}

// Each parity symbol is the XOR of its row's source symbols and of the parity symbol before: RFC 5170,
// section 6.3.
StripProgram staircase(uint32_t m) {
  StripProgram program;
  program.slots = m;
  for (uint32_t i = 0; i < m; ++i) {
    program.outputs.push_back((uint16_t)i);
    if (i == 0) continue;
    program.ops.push_back({(uint16_t)i, 2, (uint32_t)program.entries.size()});
    program.entries.insert(program.entries.end(), {(uint16_t)i, (uint16_t)(i - 1)});
  }
  return program;
}

}  // namespace

const char *LdpcCode::fault(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed) {
  if (k < 1 || k > kLdpcMaxSource) return "k is not between 1 and 8192";
  if (m < 1 || m > kLdpcMaxParity) return "m is not between 1 and 8192";
  if (n1 < 1 || n1 > kLdpcMaxN1) return "n1 is not between 1 and 10";
  if (n1 > m) return "n1 is larger than m";
  if (seed > kLdpcMaxSeed) return "seed is not between 0 and 2147483646";
  return nullptr;
}

std::shared_ptr<const LdpcCode> LdpcCode::make(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed) {
  if (fault(k, m, n1, seed)) return nullptr;
  try {
    std::shared_ptr<LdpcCode> code(new LdpcCode());
    code->k_ = k;
    code->m_ = m;
    code->n1_ = n1;
    code->seed_ = seed;
    code->create();
    return code;
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

void LdpcCode::create() {
  graph_ = graph_of(left_matrix(k_, m_, n1_, seed_ ? seed_ : 1), m_);
  lists_ = lists_of(graph_);
  program_ = staircase(m_);
}

bool LdpcCode::encode(const uint8_t *const *source, uint8_t *const *parity, size_t symbol_bytes,
                      size_t last_bytes) const noexcept {
  if (symbol_bytes < 1 || symbol_bytes > kLdpcMaxSymbolBytes) return false;
  if (last_bytes < 1 || last_bytes > symbol_bytes) return false;
  StripRun run = {};
  run.lists = &lists_;
  run.tiles = (k_ + kTileColumns - 1) / kTileColumns;
  run.program = &program_;
  run.symbols = source;
  run.short_column = k_ - 1;
  run.out = parity;
  run.short_output = UINT32_MAX;
  run.symbol_bytes = symbol_bytes;
  run.short_bytes = last_bytes;
  return run_strips(run);
}

}  // namespace gradflow
