// LDPC-Staircase erasure code over symbols (packets) of equal size: RFC 5170, terms as there. Systematic: of
// n = k + m encoding symbols the first k, by their ESI (encoding symbol ID), are the source, the other m are
// parity. docs/ldpc.md has the code, its schedule and what it costs. No function throws; all are the same on
// every platform.
#ifndef GF_COMM_LDPC_HPP
#define GF_COMM_LDPC_HPP

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <vector>

#include "ldpc_plan.hpp"
#include "ldpc_strips.hpp"

namespace gradflow {

constexpr uint32_t kLdpcMaxSource = 8192;         // of k
constexpr uint32_t kLdpcMaxParity = 8192;         // of m
constexpr uint32_t kLdpcMaxN1 = 10;               // RFC 5170, section 4.2.3: N1m3 has three bits
constexpr uint32_t kLdpcMaxSeed = 0x7FFFFFFE;     // RFC 5170, section 5.7
constexpr size_t kLdpcMaxSymbolBytes = 1u << 20;  // far above any datagram's

// The structure of one code; never changes, so any number of threads may use one, and keep it for as long as
// they like. It takes 0.1 MB for k = 1000, and 2 MB at most.
class LdpcCode {
 public:
  // Null if there is such a code, otherwise why not: static text. Sizes are checked before anything is
  // allocated.
  static const char *fault(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed);
  // Null where fault() is not, or if memory is short. Seed 0 is the RFC's seed 1, its first.
  static std::shared_ptr<const LdpcCode> make(uint32_t k, uint32_t m, uint32_t n1, uint32_t seed);

  uint32_t k() const { return k_; }
  uint32_t m() const { return m_; }
  uint32_t n() const { return k_ + m_; }
  uint32_t n1() const { return n1_; }
  uint32_t seed() const { return seed_; }
  const LdpcGraph &graph() const { return graph_; }
  const StripLists &lists() const { return lists_; }

  // Writes m symbols of symbol_bytes each from k that lie anywhere, the last of which may have fewer bytes
  // (last_bytes, at least 1): zeros are thought behind it. Parity must not overlap source. False: an argument
  // that cannot be, or no memory.
  bool encode(const uint8_t *const *source, uint8_t *const *parity, size_t symbol_bytes,
              size_t last_bytes) const noexcept;
  bool encode(const uint8_t *const *source, uint8_t *const *parity, size_t symbol_bytes) const noexcept {
    return encode(source, parity, symbol_bytes, symbol_bytes);
  }

 private:
  LdpcCode() = default;
  void create();

  uint32_t k_ = 0, m_ = 0, n1_ = 0, seed_ = 0;
  LdpcGraph graph_;
  StripLists lists_;      // of all n columns; those of the source come first
  StripProgram program_;  // the staircase
};

// Decodes one block. Symbols are referenced, not copied: they must stay where they are, unchanged, until
// solve() has returned or the decoder is gone. One thread at a time.
class LdpcDecoder {
 public:
  // `last_bytes`: of the last source symbol, as in encode(). ok() is false where memory is short or an
  // argument cannot be.
  LdpcDecoder(std::shared_ptr<const LdpcCode> code, size_t symbol_bytes, size_t last_bytes) noexcept;
  LdpcDecoder(std::shared_ptr<const LdpcCode> code, size_t symbol_bytes) noexcept
      : LdpcDecoder(std::move(code), symbol_bytes, symbol_bytes) {}
  bool ok() const { return ok_; }
  // Forgets all symbols: for the next block of the same code and sizes, without a new allocation.
  void reset() noexcept;

  // True if the symbol is new. An ESI beyond n or a null pointer is ignored, and so is a duplicate: the first
  // one counts.
  bool add(uint32_t esi, const uint8_t *symbol) noexcept;
  uint32_t received() const { return received_; }
  uint32_t missing() const { return missing_; }  // source symbols
  bool has(uint32_t esi) const { return esi < known_.size() && known_[esi]; }

  // Whether the source can be had from what is here: by the structure alone, no symbol is read. Costs nothing
  // as long as received() < k, a few microseconds otherwise, and nothing again until the next add(). False,
  // too, if memory is short.
  bool decodable() noexcept;
  // How many symbols more are needed at least; 0 if decodable(). Where received() >= k exactly so many that
  // help.
  uint32_t deficit() noexcept;
  // Writes the missing source symbols, by ascending ESI, to missing_out: one pointer each to symbol_bytes
  // bytes (last_bytes for the last source symbol). False, with nothing written, if not decodable(), or if
  // memory is short.
  bool solve(uint8_t *const *missing_out) noexcept;

  // Of the last decodable() that was true, for who runs the schedule elsewhere (cuda/ldpc.cu).
  const LdpcPlan &plan() const { return plan_; }

 private:
  std::shared_ptr<const LdpcCode> code_;
  size_t symbol_bytes_, last_bytes_;
  std::vector<const uint8_t *> symbols_;  // by ESI, null: missing
  std::vector<uint8_t> known_;            // the same as flags
  LdpcPlanner planner_;
  LdpcPlan plan_;
  uint32_t received_ = 0, missing_ = 0;
  bool ok_ = false, planned_ = false;
};

}  // namespace gradflow

#endif
