#include "guard.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parity.hpp"

namespace gf {

std::vector<double> guard_odds(uint32_t most, uint32_t m, double loss) {
  // How likely r of the m arrive.
  std::vector<double> arrive(m + 1);
  double ways = 1;
  for (uint32_t r = 0; r <= m; ++r) {
    arrive[r] = ways * std::pow(1 - loss, r) * std::pow(loss, m - r);
    ways *= static_cast<double>(m - r) / (r + 1);
  }
  // How likely e that are lost can be made from them: by LDPC, that e columns of r random bits are
  // independent.
  std::vector<double> ideal(m + 1, 0.0), random(m + 1, 0.0);
  for (uint32_t r = 0; r <= m; ++r) {
    double independent = 1;
    for (uint32_t e = 0; e <= r; ++e) {
      ideal[e] += arrive[r];
      random[e] += arrive[r] * independent;
      independent *= 1 - std::ldexp(1.0, -static_cast<int>(r - e));
    }
  }
  std::vector<double> lost(m + 1, 0.0), odds;
  lost[0] = 1;
  odds.reserve(most + 1);
  for (uint32_t s = 0; s <= most; ++s) {
    const auto &made = parity_code(s, m) == 0 ? ideal : random;
    odds.push_back(std::inner_product(lost.begin(), lost.end(), made.begin(), 0.0));
    for (uint32_t e = m; e > 0; --e) lost[e] = lost[e] * (1 - loss) + lost[e - 1] * loss;
    lost[0] *= 1 - loss;
  }
  return odds;
}

GuardPlan plan_guard(const std::vector<Weighed> &messages, size_t packet_bytes, uint32_t parity,
                     double loss) {
  GuardPlan plan;
  plan.guarded.assign(messages.size(), false);
  if (parity == 0 || messages.empty() || !(loss > 0) || loss >= 1) return plan;
  std::vector<size_t> order(messages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return messages[a].weight * static_cast<double>(messages[b].bytes) >
           messages[b].weight * static_cast<double>(messages[a].bytes);
  });
  const std::vector<double> odds = guard_odds(kGuardPackets, parity, loss);
  double weight = 0;
  size_t bytes = 0, best = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weight += messages[order[i]].weight;
    bytes += messages[order[i]].bytes;
    const size_t packets = (bytes + packet_bytes - 1) / packet_bytes;
    if (packets > kGuardPackets) break;
    const double gain = weight * loss * odds[packets];
    if (gain > plan.gain) {
      plan.gain = gain;
      best = i + 1;
    }
  }
  for (size_t i = 0; i < best; ++i) plan.guarded[order[i]] = true;
  if (best > 0) plan.parity = parity;
  return plan;
}

}  // namespace gf
