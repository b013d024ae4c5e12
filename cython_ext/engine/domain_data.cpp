// What the steps do to a chunk's elements: adding, scaling, encoding, sending.
#include <algorithm>
#include <cstring>
#include <limits>

#include "copy.hpp"
#include "domain.hpp"

namespace gf {

namespace {

// float64 is summed as it is, under `none` only: raw bytes with a checksum in front.
struct RawHeader {
  uint64_t count;
  uint32_t crc;
  uint32_t dtype;
};

const char *status_text(int status) {
  switch (status) {
    case GF_WIRE_TRUNCATED:
      return "is truncated";
    case GF_WIRE_MAGIC:
      return "does not begin as one of ours";
    case GF_WIRE_VERSION:
      return "is of another version";
    case GF_WIRE_CODEC:
      return "is of another codec, or has other steps";
    case GF_WIRE_COUNT:
      return "has another number of elements";
    case GF_WIRE_LENGTH:
      return "has an impossible length";
    case GF_WIRE_CHECKSUM:
      return "has a wrong checksum";
    default:
      return "has an impossible content";
  }
}

}  // namespace

const uint8_t *Domain::input(const At &at) const {
  if (!at.run->unit) return zeros_.data();
  return static_cast<const uint8_t *>(at.run->unit->input) + at.begin * at.run->spec.element_bytes();
}

uint8_t *Domain::output(const At &at) const {
  return static_cast<uint8_t *>(at.run->unit->output) + at.begin * at.run->spec.element_bytes();
}

float *Domain::residual(const At &at) const {
  const auto &unit = at.run->unit;
  if (!unit || !unit->residual || (at.run->spec.flags & kNonFinite)) return nullptr;
  return unit->residual + at.begin;
}

// Units whose inputs nobody looked at (a pass over memory before the first byte leaves): a result that is not
// finite, which all ranks see alike, tells that an input was not. Then residuals become what they were.
void Domain::back_up(const At &at) const {
  float *owed = residual(at);
  if (!(at.run->spec.flags & kUnchecked) || !owed) return;
  copy_past_caches(at.run->unit->backup + at.begin, owed, at.count * sizeof(float));
}

void Domain::restore(const Running &run) {
  if (!run.unit || !run.unit->residual || !run.unit->backup) return;
  At at;
  at.run = const_cast<Running *>(&run);
  for (at.chunk = 0; at.chunk < run.geometry.chunks; ++at.chunk) {
    place(&at);
    if (at.mine && run.unit->gpu) {
      restore_on_device(*run.unit, at.begin, at.count);
    } else if (at.mine) {
      std::memcpy(run.unit->residual + at.begin, run.unit->backup + at.begin, at.count * sizeof(float));
    }
  }
}

void Domain::look(const At &at, const void *result) const {
  // Where some rank said beforehand that its input is not finite, no residual was touched.
  if ((at.run->spec.flags & (kUnchecked | kNonFinite)) != kUnchecked || at.run->spoiled) return;
  at.run->spoiled = !finite(at, result);
}

bool Domain::result_free(uint64_t g) const {
  if (!shared_) return true;
  for (int i = 0; i < topology_.local_size(); ++i) {
    if (!shared_.passed(shared_.copied(i, g), g)) return false;
  }
  return true;
}

uint8_t *Domain::result_target(const At &at) {
  if (shared_) return shared_.result(at.g);
  return at.run->unit ? output(at) : scratch_.data();
}

void Domain::result_done(const At &at, uint8_t *result, Statistics statistics) {
  if (!shared_) {
    look(at, result);
    if (at.run->spec.post_scale != 1.0) scaled(at, result, result, at.run->spec.post_scale);
    chunk_done(at, std::move(statistics));
    return;
  }
  const auto &energies = statistics.energies;
  const uint64_t front[2] = {std::min<uint64_t>(energies.size(), Shared::kEnergies - 1), statistics.bytes};
  static_assert(sizeof front <= sizeof(Energy), "they take the place of one Energy");
  uint8_t *trailer = shared_.energies(at.g);
  std::memcpy(trailer, front, sizeof front);
  if (front[0]) std::memcpy(trailer + sizeof(Energy), energies.data(), front[0] * sizeof(Energy));
  shared_.set_result(at.g);
}

void Domain::chunk_done(const At &at, Statistics statistics) {
  if (at.chunk < at.run->statistics.size()) at.run->statistics[at.chunk] = std::move(statistics);
  if (--at.run->remaining == 0) finish(at.run);
}

void Domain::sum(const At &at, void *out, const std::vector<const void *> &parts, double scale) const {
  const int count = static_cast<int>(parts.size());
  if (at.run->spec.dtype == GF_F64) {
    host_->api->sum_f64(static_cast<double *>(out), reinterpret_cast<const double *const *>(parts.data()),
                        count, scale, at.count);
  } else {
    host_->api->sum_f32(static_cast<float *>(out), reinterpret_cast<const float *const *>(parts.data()),
                        count, static_cast<float>(scale), at.count);
  }
}

void Domain::sum_node(const At &at, void *out, double scale) {
  const double node_scale = at.run->spec.node_scale;
  const void *own = input(at);
  if (topology_.local_size() == 1) {
    scale *= node_scale;
  } else if (node_scale != 1.0) {
    scaled(at, own_.data(), own, node_scale);
    own = own_.data();
  }
  std::vector<const void *> parts;
  for (int i = 0; i < topology_.local_size(); ++i) {
    parts.push_back(i == topology_.local ? own : shared_.stage(i, at.g));
  }
  sum(at, out, parts, scale);
}

// To where the caller wants the result. Of a large unit the caches would not hold it until someone looks.
void Domain::hand_out(const At &at, const void *result) const {
  const UnitSpec &spec = at.run->spec;
  constexpr uint64_t kLarge = 4 << 20;
  if (spec.post_scale == 1.0 && spec.elements * spec.element_bytes() >= kLarge) {
    copy_past_caches(output(at), result, at.count * spec.element_bytes());
  } else {
    scaled(at, output(at), result, spec.post_scale);
  }
}

void Domain::scaled(const At &at, void *out, const void *in, double scale) const {
  if (scale == 1.0) {
    if (out != in) std::memcpy(out, in, at.count * at.run->spec.element_bytes());
  } else {
    sum(at, out, {in}, scale);
  }
}

size_t Domain::encode(const At &at, const void *x, float *residual, uint64_t stage, uint8_t *out) const {
  const UnitSpec &spec = at.run->spec;
  if (spec.dtype == GF_F64) {
    const size_t bytes = at.count * sizeof(double);
    RawHeader header{at.count, host_->api->crc32c(0, x, bytes), GF_F64};
    std::memcpy(out, &header, sizeof header);
    std::memcpy(out + sizeof header, x, bytes);
    return sizeof header + bytes;
  }
  const uint64_t key = host_->api->dither_key(spec.codec.seed, static_cast<uint64_t>(topology_.rank),
                                              spec.name_hash, spec.sequence, stage);
  const auto *ops = at.run->ops;
  const size_t bytes = ops->encode(ops->ctx, &spec.codec, static_cast<const float *>(x), residual, at.count,
                                   key, at.begin, out);
  if (bytes == 0) {
    throw StepError{Failure::kInternal,
                    "codec with id " + std::to_string(spec.codec.id) + " failed to encode"};
  }
  return bytes;
}

// Under a codec whose sums are sparse the owner's part goes in as it would arrive elsewhere.
void Domain::encode_own(const At &at, float *own) {
  back_up(at);
  payload_.resize(capacity_);
  float *owed = residual(at);
  const size_t bytes = encode(at, own, owed, 0, payload_.data());
  reduce_energies_[topology_.node] = measure(at, own, owed);
  decode(at, Arrival{at.g, payload_.data(), bytes, nullptr, 0, 0}, topology_.rank, own, false);
}

bool Domain::finite(const At &at, const void *x) const {
  return host_->api->load_f32(x, GF_F32, nullptr, at.count) != 0;
}

// After one more part of a sparse sum was added: of finite parts too the sum may be beyond float32, since
// what is owed grows for as long as it is not sent. It is the largest float then, unless some part is not
// finite.
void Domain::saturate(const At &at, void *total, const void *part) {
  part_spoiled_ = part_spoiled_ || !finite(at, part);
  if (part_spoiled_) return;
  constexpr float kMost = std::numeric_limits<float>::max();
  auto *x = static_cast<float *>(total);
  for (uint64_t i = 0; i < at.count; ++i) x[i] = std::min(std::max(x[i], -kMost), kMost);
}

// The sum of what arrived and of encode_own's, with all that is in it.
size_t Domain::encode_sparse_sum(const At &at, const float *total, uint8_t *out) const {
  gf_codec_spec spec;
  const auto *ops = at.run->ops;
  ops->sum_spec(ops->ctx, &at.run->spec.codec, &spec);
  const size_t bytes = ops->encode(ops->ctx, &spec, total, nullptr, at.count, 0, at.begin, out);
  if (bytes == 0) throw StepError{Failure::kInternal, "a codec with sparse sums failed to encode one"};
  return bytes;
}

void Domain::decode(const At &at, const Arrival &arrival, int source, void *out, bool add) const {
  const UnitSpec &spec = at.run->spec;
  int status = GF_WIRE_OK;
  if (arrival.chunk != at.g) {
    status = GF_WIRE_CONTENT;
  } else if (spec.dtype == GF_F64) {
    RawHeader header;
    const size_t bytes = at.count * sizeof(double);
    const uint8_t *body = arrival.payload + sizeof header;
    if (arrival.bytes != sizeof header + bytes) {
      status = GF_WIRE_LENGTH;
    } else {
      std::memcpy(&header, arrival.payload, sizeof header);
      if (header.count != at.count)
        status = GF_WIRE_COUNT;
      else if (header.crc != host_->api->crc32c(0, body, bytes))
        status = GF_WIRE_CHECKSUM;
      else if (add)
        this->add(at, out, body);
      else
        std::memcpy(out, body, bytes);
    }
  } else {
    const auto *ops = at.run->ops;
    status = (add ? ops->decode_add : ops->decode)(ops->ctx, &spec.codec, arrival.payload, arrival.bytes,
                                                   static_cast<float *>(out), at.count);
  }
  check(at, source, status);
}

void Domain::check(const At &at, int source, int status) const {
  if (status == GF_WIRE_OK) return;
  const UnitSpec &spec = at.run->spec;
  const std::string name = at.run->unit ? "'" + at.run->unit->name + "'" : "(joined)";
  throw StepError{Failure::kWire, "tensor " + name + ", step " + std::to_string(spec.sequence) + ": chunk " +
                                      std::to_string(at.chunk) + " from rank " + std::to_string(source) +
                                      " " + status_text(status)};
}

std::vector<Energy> Domain::measure(const At &at, const float *x, const float *residual) const {
  std::vector<Energy> energies;
  if (!at.run->measured()) return energies;
  const std::vector<uint64_t> ends = ends_of(*at.run);
  const uint64_t end = at.begin + at.count;
  uint64_t begin = at.begin;
  for (size_t tensor = first_tensor(ends, begin); begin < end && energies.size() < Shared::kEnergies - 1;
       ++tensor) {
    const uint64_t stop = tensor < ends.size() ? std::min(ends[tensor], end) : end;
    Energy e;
    e.gradient = host_->api->energy(x + (begin - at.begin), stop - begin);
    if (residual) e.residual = host_->api->energy(residual + (begin - at.begin), stop - begin);
    energies.push_back(e);
    begin = stop;
  }
  return energies;
}

void Domain::collect(const Arrival &arrival, std::vector<Energy> *energies) {
  energies->resize(arrival.energy_count);
  for (size_t i = 0; i < arrival.energy_count; ++i) (*energies)[i] = arrival.energy(i);
}

void Domain::add_up(const std::vector<Energy> &part, std::vector<Energy> *energies) {
  if (energies->size() < part.size()) energies->resize(part.size());
  for (size_t i = 0; i < part.size(); ++i) (*energies)[i] += part[i];
}

std::vector<int> Domain::other_owners(const At &at) const {
  std::vector<int> ranks;
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node != topology_.node) ranks.push_back(topology_.owner(node, at.slice));
  }
  return ranks;
}

void Domain::send(const At &at, Window *window, SendSlot *slot, const std::vector<int> &peers,
                  size_t payload_bytes, uint64_t first_bytes, const std::vector<Energy> &energies,
                  uint64_t missing, double weight) {
  const size_t bytes = slot->seal(at.g, payload_bytes, first_bytes, missing, energies);
  constexpr size_t kWireHeader = 32;  // of a payload of `none`
  const size_t plain = sizeof(DataHeader) + kWireHeader + at.count * at.run->spec.element_bytes();
  for (int peer : peers) {
    slot->send(window->transport(), peer, window->channel(), bytes, weight);
    window->sent(peer, &traffic);
    traffic.wire += bytes;
    traffic.uncompressed += plain;
    ++traffic.payloads;
  }
}

}  // namespace gf
