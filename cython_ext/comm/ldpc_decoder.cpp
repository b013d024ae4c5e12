#include <new>

#include "ldpc.hpp"

namespace gradflow {

LdpcDecoder::LdpcDecoder(std::shared_ptr<const LdpcCode> code, size_t symbol_bytes,
                         size_t last_bytes) noexcept
    : code_(std::move(code)), symbol_bytes_(symbol_bytes), last_bytes_(last_bytes) {
  if (!code_ || symbol_bytes < 1 || symbol_bytes > kLdpcMaxSymbolBytes) return;
  if (last_bytes < 1 || last_bytes > symbol_bytes) return;
  try {
    symbols_.assign(code_->n(), nullptr);
    known_.assign(code_->n(), 0);
  } catch (const std::bad_alloc &) {
    return;
  }
  ok_ = true;
  reset();
}

void LdpcDecoder::reset() noexcept {
  if (!ok_) return;
  symbols_.assign(code_->n(), nullptr);
  known_.assign(code_->n(), 0);
  received_ = 0;
  missing_ = code_->k();
  planned_ = false;
}

bool LdpcDecoder::add(uint32_t esi, const uint8_t *symbol) noexcept {
  if (!ok_ || esi >= code_->n() || !symbol || known_[esi]) return false;
  symbols_[esi] = symbol;
  known_[esi] = 1;
  ++received_;
  if (esi < code_->k()) --missing_;
  planned_ = false;
  return true;
}

bool LdpcDecoder::decodable() noexcept {
  if (!ok_) return false;
  if (missing_ == 0) return true;
  if (received_ < code_->k()) return false;
  if (!planned_) {
    try {
      planner_.plan(code_->graph(), known_.data(), true, &plan_);
    } catch (const std::bad_alloc &) {
      return false;
    }
    planned_ = true;
  }
  return plan_.solvable;
}

uint32_t LdpcDecoder::deficit() noexcept {
  if (!ok_ || decodable()) return 0;
  return planned_ ? plan_.deficit : code_->k() - received_;
}

bool LdpcDecoder::solve(uint8_t *const *missing_out) noexcept {
  if (!decodable()) return false;
  if (missing_ == 0) return true;
  StripRun run = {};
  run.lists = &code_->lists();
  run.tiles = code_->lists().tile_column.size() - 1;
  run.rows = plan_.rows.data();
  run.columns = plan_.columns.data();
  run.program = &plan_.program;
  run.symbols = symbols_.data();
  run.short_column = code_->k() - 1;
  run.out = missing_out;
  run.short_output = known_[code_->k() - 1] ? UINT32_MAX : missing_ - 1;
  run.symbol_bytes = symbol_bytes_;
  run.short_bytes = last_bytes_;
  return run_strips(run);
}

}  // namespace gradflow
