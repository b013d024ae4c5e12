// What the steps of chunks on a device launch there (domain_device.cpp); nothing here waits.
#include "domain.hpp"

namespace gf {

// The ends of a chunk's tensors, from its beginning; none where nothing is measured.
std::vector<uint64_t> Domain::measured_ends(const At &at) const {
  std::vector<uint64_t> ends;
  if (!at.run->measured()) return ends;
  const std::vector<uint64_t> all = ends_of(*at.run);
  const uint64_t end = at.begin + at.count;
  uint64_t begin = at.begin;
  for (size_t tensor = first_tensor(all, begin); begin < end && ends.size() < Shared::kEnergies - 1;
       ++tensor) {
    const uint64_t stop = tensor < all.size() ? std::min(all[tensor], end) : end;
    ends.push_back(stop - at.begin);
    begin = stop;
  }
  return ends;
}

void Domain::launch_energies(const At &at, Worker *w, const float *x, const float *residual,
                             size_t set) const {
  const std::vector<uint64_t> ends = measured_ends(at);
  if (ends.empty()) return;
  w->ok(w->gpu()->energies(x, residual, ends.data(), ends.size(), w->energies(set, ends.size()), w->stream()),
        "energies");
}

void Domain::launch_sum(Worker *w, float *out, const float *a, const float *b, double scale, uint64_t count,
                        int32_t *finite) {
  w->ok(w->gpu()->sum(out, a, b, static_cast<float>(scale), count, finite, w->stream()), "a sum");
}

// This rank's part of the sum, scaled.
void Domain::launch_own(const At &at, Worker *w) const {
  const auto *in = reinterpret_cast<const float *>(input(at));
  launch_sum(w, w->x, in, nullptr, at.run->spec.node_scale, at.count, nullptr);
}

void Domain::launch_back_up(const At &at, Worker *w) const {
  const float *owed = residual(at);
  if (!(at.run->spec.flags & kUnchecked) || !owed) return;
  w->ok(w->gpu()->copy(at.run->unit->backup + at.begin, owed, at.count * sizeof(float), GF_GPU_WITHIN,
                       w->stream(), 0),
        "a copy of the residual");
}

// Encodes x with the residual into the worker's payload, and measures both into a set of energies.
void Domain::launch_encode(const At &at, Worker *w, const std::vector<float> *steps, const float *x,
                           uint64_t stage, size_t set) const {
  const UnitSpec &spec = at.run->spec;
  void *const scratch = w->scratch(spec.codec, at.count);
  float *lost = residual(at);
  if (steps) {
    if (!lost) {  // measured all the same
      lost = w->lost;
      w->ok(w->gpu()->fill(lost, 0, at.count * sizeof(float), w->stream()), "clearing");
    }
    const auto segments = at.run->steps.cut(*steps, at.begin, at.count);
    w->ok(w->gpu()->encode_stepped(&spec.codec, segments.data(), segments.size(), GF_F32, x, lost, at.count,
                                   w->payload, &w->reported()->size, scratch, w->scratch_size(), w->stream()),
          "encoding");
  } else {
    const uint64_t key = host_->api->dither_key(spec.codec.seed, static_cast<uint64_t>(topology_.rank),
                                                spec.name_hash, spec.sequence, stage);
    w->ok(w->gpu()->encode(&spec.codec, GF_F32, x, lost, at.count, key, at.begin, w->payload,
                           &w->reported()->size, scratch, w->scratch_size(), w->stream()),
          "encoding");
  }
  launch_energies(at, w, x, lost, set);
}

void Domain::launch_decode(const At &at, Worker *w, const uint8_t *payload, size_t bytes, float *out,
                           bool add, int32_t *status) const {
  const gf_codec_spec &codec = at.run->spec.codec;
  void *const scratch = w->scratch(codec, at.count);
  w->ok(w->gpu()->decode(&codec, payload, bytes, out, at.count, add, status, scratch, w->scratch_size(),
                         w->stream()),
        "decoding");
}

void Domain::launch_add_codes(const At &at, Worker *w, const uint8_t *payload, size_t bytes,
                              int32_t *status) const {
  const gf_codec_spec &codec = at.run->spec.codec;
  void *const scratch = w->scratch(codec, at.count);
  const auto segments = at.run->steps.cut(at.run->steps.first, at.begin, at.count);
  w->ok(w->gpu()->add_codes(&codec, segments.data(), segments.size(), payload, bytes, w->total, at.count,
                            status, scratch, w->scratch_size(), w->stream()),
        "adding codes");
}

// As Domain::encode_sum: `total` holds the other nodes' integers, and with exact sums this rank's too.
void Domain::launch_encode_sum(const At &at, Worker *w) const {
  const UnitSpec &spec = at.run->spec;
  const Steps &steps = at.run->steps;
  const bool finite = !(spec.flags & kNonFinite);
  const auto segments = steps.cut(steps.first, at.begin, at.count);
  const gf_gpu_api *gpu = w->gpu();
  if (steps.exact) {
    void *const scratch = w->scratch(spec.codec, at.count);
    w->ok(gpu->encode_codes(&spec.codec, segments.data(), segments.size(), GF_F32, w->total, at.count,
                            w->payload, &w->reported()->size, scratch, w->scratch_size(), w->stream()),
          "encoding a sum");
  }
  w->ok(gpu->scale_segments(w->total, segments.data(), segments.size(), w->stream()), "scaling codes");
  if (finite) w->ok(gpu->bound(w->total, at.count, nullptr, w->stream()), "bounding");
  if (steps.exact) {
    launch_energies(at, w, w->total, nullptr, 1);
    return;
  }
  launch_energies(at, w, w->x, nullptr, 0);
  int32_t *healthy = nullptr;  // infinite input must stay so, where nobody looked at it beforehand
  if (spec.flags & kUnchecked) {
    healthy = &w->reported()->input_finite;
    launch_sum(w, nullptr, w->x, nullptr, 1.0, at.count, healthy);
  }
  launch_sum(w, w->x, w->x, w->total, 1.0, at.count, nullptr);
  if (finite) w->ok(gpu->bound(w->x, at.count, healthy, w->stream()), "bounding");
  launch_encode(at, w, &steps.second, w->x, 1, 1);
}

// A decoded result is looked at and scaled where it lies.
void Domain::launch_result(const At &at, Worker *w) {
  auto *result = reinterpret_cast<float *>(output(at));
  int32_t *finite =
      (at.run->spec.flags & (kUnchecked | kNonFinite)) == kUnchecked ? &w->reported()->finite : nullptr;
  const double scale = at.run->spec.post_scale;
  if (finite || scale != 1.0)
    launch_sum(w, scale == 1.0 ? nullptr : result, result, nullptr, scale, at.count, finite);
}

void Domain::result_is_there(const At &at, Worker *w) {
  if (!w->answer().finite) at.run->spoiled = true;
  w->phase = Phase::kIdle;
  chunk_done(at, std::move(w->statistics));
}

}  // namespace gf
