#include "steps.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../elements.h"

// Only +, -, *, / and square roots: they are the same on every machine, other functions need not be.
namespace gf {

namespace {
constexpr double kSmallest = 1.0 / 256, kLargest = 256;  // multiples of the root mean square
constexpr double kFastest = 2;                           // change of a multiple from one step to the next
constexpr double kBurst = 16;  // times what the inputs can amount to: that was owed since a spike
// An energy rises so much at most from one step to the next: a lone spike must not silence the rest.
constexpr double kLeap = 16;
constexpr double kRecent = 0.2;  // weight of the last step in the mean of bytes
// Up to so many nodes a sum of codes costs no more than a second encoding (measured; docs/codecs.md).
constexpr int kExactNodes = 4;

int control_of(const gf_codec_spec &codec) { return static_cast<int>(codec.params[1] & 0xff); }
int second_of(const gf_codec_spec &codec) { return static_cast<int>(codec.params[1] >> 8 & 0xff); }

double limited(double value, double low, double high) { return std::min(std::max(value, low), high); }
}  // namespace

std::vector<gf_segment> Steps::cut(const std::vector<float> &steps, uint64_t begin, uint64_t count) const {
  std::vector<gf_segment> segments;
  auto tensor = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
  for (uint64_t at = begin; at < begin + count && tensor < ends.size(); ++tensor) {
    if (ends[tensor] <= at) continue;  // a tensor without elements
    at = std::min(ends[tensor], begin + count);
    segments.push_back({at - begin, steps[tensor], 0});
  }
  return segments;
}

bool StepControl::about(const std::vector<uint64_t> &ends, const gf_codec_spec &codec) const {
  if (ends.size() != tensors_.size() || std::memcmp(&codec, &codec_, sizeof codec) != 0) return false;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (tensors_[i].end != ends[i]) return false;
  }
  return true;
}

bool StepControl::knows(const std::vector<uint64_t> &ends, const gf_codec_spec &codec) const {
  if (!about(ends, codec)) return false;
  uint64_t begin = 0;
  for (const Tensor &t : tensors_) {
    if (t.end > begin && !(t.energy > 0)) return false;
    begin = t.end;
  }
  return true;
}

double StepControl::asked() const {
  double value;
  std::memcpy(&value, &codec_.params[0], sizeof value);
  return value;
}

// What is known already stays: an agreement may be about one new tensor only. Unless some rank knows nothing:
// then all forget, or they would go on from different states.
void StepControl::agree(const Agreement &agreement, const gf_codec_spec &codec) {
  const bool anew = agreement.fresh || !about(agreement.ends, codec);
  codec_ = codec;
  if (anew) {
    double multiple = 1;
    if (control_of(codec) == GF_CONTROL_STEP) multiple = asked();
    // The error of a fine uniform quantizer is step^2 / 12.
    if (control_of(codec) == GF_CONTROL_SIMILARITY) multiple = std::sqrt(12 * (1 - asked() * asked()));
    // With the root mean square itself, payloads of a Laplace distribution have about a twelfth. Bytes fall
    // with the step, or with its square, by how heavy a gradient's tails are and what error feedback owes.
    if (control_of(codec) == GF_CONTROL_RATIO) {
      const double half = std::sqrt(asked() / 12);
      multiple = limited(half * std::sqrt(half), kSmallest, kLargest);
    }
    part_ = 0;
    tensors_.assign(agreement.ends.size(), Tensor{});
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].end = agreement.ends[i];
      tensors_[i].multiple = multiple;
    }
  }
  for (size_t i = 0; i < tensors_.size() && i < agreement.energies.size(); ++i) {
    if (tensors_[i].energy <= 0) tensors_[i].energy = agreement.energies[i];
  }
}

Steps StepControl::steps(int nodes) const {
  Steps s;
  s.exact =
      second_of(codec_) == GF_SECOND_EXACT || (second_of(codec_) == GF_SECOND_AUTO && nodes <= kExactNodes);
  // Errors of independent encodings add up in the square. Exact: one of each node. Otherwise: one of each
  // node but the home, and as much again from the second encoding.
  const double parts = s.exact ? nodes : 2.0 * (nodes - 1);
  const double second = s.exact ? 1.0 : std::sqrt(static_cast<double>(nodes - 1));
  uint64_t begin = 0;
  for (const Tensor &t : tensors_) {
    const double multiple = t.multiple / std::sqrt(parts);
    const auto n = static_cast<double>(std::max<uint64_t>(t.end - begin, 1));
    s.ends.push_back(t.end);
    s.first.push_back(gf_dz_step(multiple, t.energy, n));
    s.second.push_back(gf_dz_step(multiple * second, t.energy, n));
    begin = t.end;
  }
  return s;
}

void StepControl::learn(const std::vector<Energy> &energies, uint64_t bytes, int nodes) {
  const int control = control_of(codec_);
  bool any = false;
  for (const Energy &e : energies) any = any || e.gradient > 0;
  // Inputs that are zero say nothing about steps, whatever a residual still brought; a ratio's would become
  // as fine as can be.
  if (!any) return;
  const double plain =
      2.0 * (nodes - 1) * static_cast<double>(tensors_.empty() ? 0 : tensors_.back().end) * sizeof(float);
  const double part = plain > 0 ? static_cast<double>(bytes) / plain : 0;
  // A budget is one of sums of bytes; single steps differ too much to be steered by.
  part_ = part_ > 0 ? part_ + kRecent * (part - part_) : part;
  for (size_t i = 0; i < tensors_.size() && i < energies.size(); ++i) {
    Tensor &t = tensors_[i];
    const Energy &e = energies[i];
    const bool measured = std::isfinite(e.total);
    // Not of what arrived: under error feedback that comes in bursts, and a step that follows them swings.
    const bool rising = measured && t.energy > 0 && e.gradient > kLeap * t.energy;
    if (rising) {
      t.energy *= kLeap;
    } else if (!measured) {
      t.energy = 0;
    } else if (e.gradient > 0) {
      // A quarter of the way, in the logarithm: small batches' gradients differ in size from step to step,
      // and steps that follow them send too little now and too much then. What falls far stays small.
      const bool noise = t.energy > 0 && e.gradient * kLeap >= t.energy;
      t.energy = noise ? t.energy * std::sqrt(std::sqrt(e.gradient / t.energy)) : e.gradient;
    }
    double factor = 1;
    if (control == GF_CONTROL_SIMILARITY && measured && !rising && e.gradient > 0) {
      const double lost = e.residual / (e.total + e.residual);
      // The loss goes with the square of the step, at most; half of the way in each step is stable.
      factor = lost > 0 ? std::sqrt(std::sqrt((1 - asked() * asked()) / lost)) : kFastest;
      // More than the inputs can amount to was owed since a spike, next to which any loss looks small.
      if (e.total > kBurst * nodes * e.gradient) factor = std::min(factor, 1.0);
    } else if (control == GF_CONTROL_RATIO && !rising && part_ > 0) {
      factor = std::sqrt(part_ * asked());
      // Close by with less: the mean of bytes lags behind.
      if (factor < kFastest && factor > 1 / kFastest) factor = std::sqrt(factor);
    }
    t.multiple = limited(t.multiple * limited(factor, 1 / kFastest, kFastest), kSmallest, kLargest);
    if (control == GF_CONTROL_STEP) t.multiple = asked();
  }
}

}  // namespace gf
