// Parity for packets that have left (docs/udp.md, "Parity"), over their frames: Reed-Solomon for short
// blocks, LDPC-Staircase for long ones.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "datagram.hpp"
#include "ldpc.hpp"

namespace gf {

// The frames of a path's last kKept data packets, each padded to the longest symbol.
class Kept {
 public:
  void keep(uint32_t number, const uint8_t *frames, size_t bytes, size_t longest);
  const uint8_t *find(uint32_t number, size_t *bytes = nullptr) const;

 private:
  struct Entry {
    uint32_t number = 0;
    size_t bytes = 0;
    std::vector<uint8_t> frames;
  };
  std::vector<Entry> ring_;
};

constexpr uint32_t kMostParity = 512;  // symbols of a block
constexpr uint32_t kMostShort = 16;    // of a block of Reed-Solomon

// How many symbols a block of k packets needs, of which `open` may be missing, so that all but some in a
// thousand can be had: three standard deviations, and what LDPC takes beyond an ideal code (docs/ldpc.md).
uint32_t parity_for(uint32_t k, uint32_t open, double loss);
// Which code makes m symbols of k: 0 for Reed-Solomon, or the N1 of LDPC-Staircase.
uint8_t parity_code(uint32_t k, uint32_t m);

// A block that waits for its turn to be sent.
class ParityOut {
 public:
  bool waiting() const { return next_ < body_.m; }
  // False where a packet is not kept any more, or memory is short.
  bool make(uint32_t first, uint32_t k, uint32_t m, const Kept &kept);
  // The next body; `room` has a symbol beside the header.
  size_t next(uint8_t *out);
  void drop() { next_ = body_.m; }
  uint32_t first() const { return body_.first; }
  uint32_t k() const { return body_.k; }

 private:
  ParityBody body_;
  uint32_t next_ = 0;
  size_t symbol_ = 0;
  std::vector<uint8_t> symbols_;
};

// Blocks on their way in: a few of the latest.
class ParityIn {
 public:
  // Whether there can be such a symbol; `why` says what cannot be.
  static bool possible(const ParityBody &body, std::string *why);
  void add(const ParityBody &body, const uint8_t *symbol, size_t bytes);
  // Packets of some block that can be made now: calls `made(number, frames, bytes)` for each, and forgets it.
  // `there(number)` says whether a packet has arrived, `kept` has those that did.
  template <class There, class Made>
  void solve(const Kept &kept, There &&there, Made &&made);
  // Whether a block has this packet.
  bool covers(uint32_t number) const {
    for (const Block &block : blocks_) {
      if (number - block.body.first < block.body.k) return true;
    }
    return false;
  }

 private:
  struct Block {
    ParityBody body;
    size_t symbol = 0;
    std::vector<uint32_t> which;
    std::vector<uint8_t> symbols;
  };
  static constexpr size_t kMostBlocks = 4;
  // Writes the missing ones into `out`; false if they cannot be had (yet).
  static bool decode(const Block &block, const std::vector<const uint8_t *> &sources,
                     std::vector<uint8_t> *out);
  std::deque<Block> blocks_;
};

template <class There, class Made>
void ParityIn::solve(const Kept &kept, There &&there, Made &&made) {
  for (size_t i = 0; i < blocks_.size();) {
    Block &block = blocks_[i];
    const uint32_t k = block.body.k;
    std::vector<const uint8_t *> sources(k, nullptr);
    std::vector<uint32_t> missing;  // or not kept: then it is past, and matters to the equations only
    bool wanted = false;
    for (uint32_t j = 0; j < k; ++j) {
      const uint32_t number = block.body.first + j;
      const bool came = there(number);
      if (came) sources[j] = kept.find(number);
      if (!sources[j]) missing.push_back(number);
      wanted |= !came;
    }
    std::vector<uint8_t> out;
    if (wanted && (block.which.size() < missing.size() || !decode(block, sources, &out))) {
      ++i;
      continue;
    }
    const size_t symbol = block.symbol;
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!wanted) continue;
    for (size_t j = 0; j < missing.size(); ++j) made(missing[j], out.data() + j * symbol, symbol);
  }
}

}  // namespace gf
