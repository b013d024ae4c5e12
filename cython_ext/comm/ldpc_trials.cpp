#include "ldpc_trials.hpp"

namespace gradflow {
namespace {

// Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014), figure 15.
uint64_t split_mix(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

}  // namespace

LdpcTrials ldpc_trials(const LdpcCode &code, uint64_t threshold, uint64_t trials, uint64_t random) {
  LdpcTrials found;
  LdpcPlanner planner;
  LdpcPlan plan;
  std::vector<uint8_t> known(code.n());
  for (found.trials = 0; found.trials < trials; ++found.trials) {
    uint32_t received = 0;
    for (uint8_t &k : known) received += k = (uint8_t)(split_mix(&random) >> 32 >= threshold);
    if (received < code.k()) {
      ++found.too_few;
      ++found.peeling;
      ++found.failed;
      continue;
    }
    planner.plan(code.graph(), known.data(), false, &plan);
    found.peeling += plan.inactive != 0;
    found.failed += !plan.solvable;
    found.inactive += plan.inactive;
  }
  return found;
}

}  // namespace gradflow
