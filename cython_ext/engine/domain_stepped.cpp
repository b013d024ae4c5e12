// Chunks of stepped codecs (deadzone): the ranks agree on steps, and the owner at home adds integers.
// The text to it is "Steps" in docs/architecture.md.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "domain.hpp"

namespace gf {

namespace {
constexpr float kNotExact = 4194304.0f;  // 2^22: integers below it stay as they are in a sum's payload

// Each part of a sum is rounded, perhaps up: a sum of finite ones must not become infinite.
void bound(float *values, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (std::isinf(values[i])) values[i] = std::copysign(std::numeric_limits<float>::max(), values[i]);
  }
}
}  // namespace

Agreement Domain::inputs(const Unit &unit) {
  Agreement a;
  const UnitSpec &spec = unit.spec;
  if (!(spec.flags & kStepped) || topology_.node_count() == 1 || spec.elements == 0) return a;
  const std::vector<uint64_t> ends = unit.ends.empty() ? std::vector<uint64_t>{spec.elements} : unit.ends;
  const auto found = controls_.find(spec.name_hash);
  if (found != controls_.end() && found->second.knows(ends, spec.codec) && !forgotten_.count(spec.name_hash))
    return a;
  // After a join this rank may lag; then those who reduced it last know better.
  a.fresh = forgotten_.count(spec.name_hash) ||
            (!runs(spec.name_hash) && (found == controls_.end() || !found->second.about(ends, spec.codec)));
  if (unit.gpu) {
    a.energies = device_energies(unit, ends);
  } else {
    const auto *x = static_cast<const float *>(unit.input);
    uint64_t begin = 0;
    for (uint64_t end : ends) {
      a.energies.push_back(host_->api->energy(x + begin, end - begin));
      begin = end;
    }
  }
  for (double &energy : a.energies) energy = energy * spec.node_scale * spec.node_scale;
  a.ends = ends;
  return a;
}

bool Domain::runs(uint64_t name_hash) const {
  return std::any_of(
             running_.begin(), running_.end(),
             [&](const Running &run) { return run.spec.name_hash == name_hash && run.remaining > 0; }) ||
         std::any_of(halves_.begin(), halves_.end(),
                     [&](const auto &entry) { return entry.first.first == name_hash; });
}

// Names that this rank will not submit again, or that it starts anew with: the next agreement on one of them
// says so, and then all ranks forget it. So they need not forget at the same time.
void Domain::forget(const std::vector<uint64_t> &names) {
  for (uint64_t name : names) {
    if (runs(name)) {
      forgotten_.insert(name);  // retire() sees to it
    } else {
      controls_.erase(name);
    }
  }
}

bool Domain::steps_known(Running *run) {
  if (!run->stepped() || !run->steps.ends.empty()) return true;
  if (topology_.node_count() == 1 || run->spec.elements == 0) return true;
  // Only a rank that has joined can be here: it may lag, and must learn from the earlier one first.
  for (const Running &other : running_) {
    if (&other == run) break;
    if (other.spec.name_hash == run->spec.name_hash && other.spec.sequence != run->spec.sequence &&
        other.remaining > 0)
      return false;
  }
  StepControl &control = controls_[run->spec.name_hash];
  if (!run->agreement.ends.empty()) control.agree(run->agreement, run->spec.codec);
  run->steps = control.steps(topology_.node_count());
  if (run->steps.ends.empty() || run->steps.ends.back() != run->spec.elements) {
    throw StepError{Failure::kInternal, "rank " + std::to_string(topology_.rank) +
                                            " does not know the steps of a tensor that the others agree on"};
  }
  return true;
}

// Encodes x, with the residual where there is one; the energies are those of x and of what was lost.
size_t Domain::encode_stepped(const At &at, const std::vector<float> &steps, const float *x, uint8_t *out,
                              std::vector<Energy> *energies) {
  const auto segments = at.run->steps.cut(steps, at.begin, at.count);
  float *lost = residual(at);
  if (!lost) {  // measured all the same
    lost_.assign(at.count * sizeof(float), 0);
    lost = reinterpret_cast<float *>(lost_.data());
  }
  const auto *ops = at.run->ops;
  const size_t bytes = ops->encode_stepped(ops->ctx, &at.run->spec.codec, segments.data(), segments.size(), x,
                                           lost, at.count, out);
  if (bytes == 0) throw StepError{Failure::kInternal, "a codec with steps failed to encode"};
  *energies = measure(at, x, lost);
  return bytes;
}

void Domain::add_codes(const At &at, const Arrival &arrival, int source) {
  int status = GF_WIRE_CONTENT;
  if (arrival.chunk == at.g) {
    const auto segments = at.run->steps.cut(at.run->steps.first, at.begin, at.count);
    const auto *ops = at.run->ops;
    status = ops->add_codes(ops->ctx, &at.run->spec.codec, segments.data(), segments.size(), arrival.payload,
                            arrival.bytes, reinterpret_cast<float *>(codes_.data()), at.count);
  }
  check(at, source, status);
}

// The sum of the codes, as it travels on, is rounded where blocks are shifted: a spike on one node takes with
// it what the others have in its block. The home owes that.
void Domain::owe_rounding(const At &at, const float *values, const Arrival &encoded) {
  lost_.resize(at.count * sizeof(float));
  auto *arrives = reinterpret_cast<float *>(lost_.data());
  decode(at, encoded, topology_.rank, arrives, false);
  float *owed = residual(at);
  for (uint64_t i = 0; i < at.count; ++i) {
    const float rounding = values[i] - arrives[i];
    if (std::isfinite(rounding) && rounding != 0) owed[i] += rounding;
  }
  bound(owed, at.count);
}

// codes_ holds the sum of the other nodes' integers. Encodes the sum with this node's part; the energies are
// those of that part, of what was lost here, and of the total.
size_t Domain::encode_sum(const At &at, float *own, uint8_t *out, std::vector<Energy> *energies) {
  const Steps &steps = at.run->steps;
  auto *codes = reinterpret_cast<float *>(codes_.data());
  const bool finite = !(at.run->spec.flags & kNonFinite);
  size_t bytes = 0;
  bool rounded = false;
  if (steps.exact) bytes = encode_codes(at, own, out, energies, &rounded);
  uint64_t begin = 0;
  for (const gf_segment &s : steps.cut(steps.first, at.begin, at.count)) {  // codes become values
    const float *part = codes + begin;
    host_->api->sum_f32(codes + begin, &part, 1, s.step, s.end - begin);
    begin = s.end;
  }
  if (finite) bound(codes, at.count);
  std::vector<Energy> total;
  if (steps.exact) {
    if (rounded && residual(at)) {
      owe_rounding(at, codes, Arrival{at.g, out, bytes, nullptr, 0, 0});
      *energies = measure(at, own, residual(at));
    }
    total = measure(at, codes, nullptr);
  } else {
    *energies = measure(at, own, nullptr);
    // Infinite input must stay so, where nobody looked at it beforehand.
    const bool sick =
        at.run->spec.flags & kUnchecked && !host_->api->load_f32(own, GF_F32, nullptr, at.count);
    add(at, own, codes);
    if (finite && !sick) bound(own, at.count);
    bytes = encode_stepped(at, steps.second, own, out, &total);
  }
  for (size_t i = 0; i < energies->size(); ++i) {
    (*energies)[i].total = total[i].gradient;
    (*energies)[i].residual += total[i].residual;
  }
  return bytes;
}

// Adds this node's integers to the others' and encodes them all; `rounded` tells whether that changed any.
size_t Domain::encode_codes(const At &at, const float *own, uint8_t *out, std::vector<Energy> *energies,
                            bool *rounded) {
  payload_.resize(capacity_);
  const size_t own_bytes = encode_stepped(at, at.run->steps.first, own, payload_.data(), energies);
  add_codes(at, Arrival{at.g, payload_.data(), own_bytes, nullptr, 0, 0}, topology_.rank);
  const auto *codes = reinterpret_cast<const float *>(codes_.data());
  const auto segments = at.run->steps.cut(at.run->steps.first, at.begin, at.count);
  const auto *ops = at.run->ops;
  const size_t bytes = ops->encode_codes(ops->ctx, &at.run->spec.codec, segments.data(), segments.size(),
                                         codes, at.count, out);
  if (bytes == 0) throw StepError{Failure::kInternal, "a codec with steps failed to encode a sum"};
  *rounded = std::any_of(codes, codes + at.count, [](float code) { return std::fabs(code) >= kNotExact; });
  return bytes;
}

}  // namespace gf
