// Unequal protection (docs/udp.md): which of the messages that may be given up get a share of the parity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gf {

constexpr double kGuardShare = 0.05;     // packets of parity, of those that it could be for
constexpr uint32_t kGuardPackets = 448;  // of one batch; with what is sent again, kKept at most

struct Weighed {
  double weight;  // what is lost if it is not there: energy
  size_t bytes;
};

struct GuardPlan {
  std::vector<bool> guarded;  // of each message
  uint32_t parity = 0;        // packets
  double gain = 0;            // weight that is expected to arrive for it
};

// The probability that all of s packets can be had, of which some are lost, with m of parity, of which some
// are lost, too; for s from 0 to `most`. With LDPC as many equations as there are unknowns do not suffice
// always; they are taken for random ones.
std::vector<double> guard_odds(uint32_t most, uint32_t m, double loss);

// Chooses those with most weight by byte, as many as make the expected gain largest.
GuardPlan plan_guard(const std::vector<Weighed> &messages, size_t packet_bytes, uint32_t parity, double loss);

}  // namespace gf
