// Payloads that may be given up (docs/architecture.md, "Deadlines"): the home of a chunk goes on without
// those that others have overtaken, its result says whose they were, and who sent them owes what was in them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "domain.hpp"

namespace gf {

// Only where what is missing is owed. All ranks answer alike: it follows from what GO says.
bool Domain::may_miss(const Running &run) const {
  return options_.deadline > 0 && topology_.node_count() > 1 && !run.sparse() &&
         (run.spec.flags & (kErrorFeedback | kNonFinite | kLate)) == kErrorFeedback;
}

// The slot that comes next may still hold a payload whose fate is not known.
bool Domain::may_keep(int peer) const {
  const auto &kept = kept_[peer];
  return kept.empty() || scatter_counts_[peer] - kept.front().count < scatter_slots_[peer].size();
}

// Sum of squares of a + b, in four lanes to be quick; b may be null.
double Domain::energy_of(const float *a, const float *b, uint64_t count) {
  double lanes[4] = {};
  for (uint64_t i = 0; i < count; ++i) {
    const double v = b ? static_cast<double>(a[i]) + b[i] : a[i];
    lanes[i % 4] += v * v;
  }
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

// What a payload is worth: by how much its arrival makes the energy of what is owed less. One that is not
// finite is what everybody must know of first.
double Domain::weight_of(double before, const At &at) const {
  const float *owed = residual(at);
  const double weight = owed ? before - energy_of(owed, nullptr, at.count) : 0;
  if (!std::isfinite(weight)) return std::numeric_limits<float>::max();
  return std::max(weight, static_cast<double>(std::numeric_limits<float>::min()));
}

void Domain::keep_sent(const At &at, int peer, size_t slot, size_t bytes, double weight) {
  // What is not finite has no energy that could be counted with that of others.
  const double energy = weight < std::numeric_limits<float>::max() ? weight : 0;
  kept_[peer].push_back({at.g, scatter_counts_[peer] - 1, slot, bytes, energy});
  traffic.loose_energy = traffic.loose_energy + energy;
}

void Domain::give_up(const At &at, uint8_t *total, bool first) {
  reduce_missing_ |= uint64_t{1} << reduce_node_;
  ++traffic.missed;
  if (at.run->stepped()) {
    if (reduce_bytes_ == 0) codes_.assign(at.count * sizeof(float), 0);
  } else if (first) {
    std::memset(total, 0, at.count * at.run->spec.element_bytes());
  }
}

// Nodes whose part is missing count as the others on average, or steps would follow the loss.
void Domain::stand_in(std::vector<Energy> *energies) const {
  const int nodes = topology_.node_count();
  const double factor = static_cast<double>(nodes) / (nodes - __builtin_popcountll(reduce_missing_));
  for (Energy &e : *energies) {
    e.gradient *= factor;
    e.residual *= factor;
  }
}

void Domain::owe_missed(const At &at, int peer, const Arrival &arrival) {
  auto &kept = kept_[peer];
  if (kept.empty() || kept.front().g != at.g) {
    throw StepError{Failure::kInternal, "a result came for a chunk that was not sent"};
  }
  const Kept sent = kept.front();
  kept.pop_front();
  float *owed = residual(at);
  if (!(arrival.missing >> topology_.node & 1)) return;
  traffic.missed_energy = traffic.missed_energy + sent.energy;
  if (!owed) return;
  const Arrival mine{at.g, scatter_slots_[peer][sent.slot].payload(), sent.bytes, nullptr, 0, 0};
  decode(at, mine, topology_.rank, scratch_.data(), false);
  const auto *x = reinterpret_cast<const float *>(scratch_.data());
  if (!finite(at, x)) {  // nobody looked at the input, and without this part the result does not tell
    if (at.run->unit->backup) std::memcpy(owed, at.run->unit->backup + at.begin, at.count * sizeof(float));
    return;
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  for (uint64_t i = 0; i < at.count; ++i) owed[i] = std::min(std::max(owed[i] + x[i], -kMost), kMost);
}

}  // namespace gf
