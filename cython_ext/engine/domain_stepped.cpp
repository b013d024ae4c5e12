// Chunks of stepped codecs (deadzone): the ranks agree on steps, and the owner at home adds integers.
// The text to it is "Steps" in docs/architecture.md.
#include <algorithm>
#include <cstring>

#include "domain.hpp"

namespace gf {

Agreement Domain::inputs(const Unit &unit) {
  Agreement a;
  const UnitSpec &spec = unit.spec;
  if (!(spec.flags & kStepped) || topology_.node_count() == 1 || spec.elements == 0) return a;
  const std::vector<uint64_t> ends = unit.ends.empty() ? std::vector<uint64_t>{spec.elements} : unit.ends;
  const auto found = controls_.find(spec.name_hash);
  if (found != controls_.end() && found->second.knows(ends, spec.codec)) return a;
  const auto *x = static_cast<const float *>(unit.input);
  uint64_t begin = 0;
  for (uint64_t end : ends) {
    a.energies.push_back(host_->api->energy(x + begin, end - begin) * spec.node_scale * spec.node_scale);
    begin = end;
  }
  a.ends = ends;
  return a;
}

bool Domain::steps_known(Running *run) {
  if (!run->stepped() || !run->steps.ends.empty()) return true;
  if (topology_.node_count() == 1 || run->spec.elements == 0) return true;
  // Only a rank that has joined can be here: it may lag, and must learn from the earlier one first.
  for (const Running &other : running_) {
    if (&other == run) break;
    if (other.spec.name_hash == run->spec.name_hash && other.remaining > 0) return false;
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
    lost_.assign(options_.chunk_bytes, 0);
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

// codes_ holds the sum of the other nodes' integers. Encodes the sum with this node's part; the energies of
// that, and of the total, join those of the others.
size_t Domain::encode_sum(const At &at, float *own, uint8_t *out, std::vector<Energy> *energies) {
  const Steps &steps = at.run->steps;
  const auto segments = steps.cut(steps.first, at.begin, at.count);
  const auto *ops = at.run->ops;
  auto *codes = reinterpret_cast<float *>(codes_.data());
  std::vector<Energy> mine;
  size_t bytes = 0;
  if (steps.exact) {
    payload_.resize(capacity_);
    const size_t own_bytes = encode_stepped(at, steps.first, own, payload_.data(), &mine);
    add_codes(at, Arrival{at.g, payload_.data(), own_bytes, nullptr, 0, 0}, topology_.rank);
    bytes = ops->encode_codes(ops->ctx, &at.run->spec.codec, segments.data(), segments.size(), codes,
                              at.count, out);
    if (bytes == 0) throw StepError{Failure::kInternal, "a codec with steps failed to encode a sum"};
  }
  // From here on `codes` are values.
  uint64_t begin = 0;
  for (const gf_segment &s : segments) {
    const float *part = codes + begin;
    host_->api->sum_f32(codes + begin, &part, 1, s.step, s.end - begin);
    begin = s.end;
  }
  if (!steps.exact) {
    add(at, own, codes);
    bytes = encode_stepped(at, steps.second, own, out, &mine);
    for (Energy &e : mine) {
      e.total = e.gradient;
      e.gradient = 0;
    }
  } else {
    const std::vector<Energy> total = measure(at, codes, nullptr);
    for (size_t i = 0; i < mine.size(); ++i) mine[i].total = total[i].gradient;
  }
  if (energies->size() < mine.size()) energies->resize(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) (*energies)[i] += mine[i];
  return bytes;
}

}  // namespace gf
