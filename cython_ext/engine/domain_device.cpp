// The steps of chunks whose elements lie on a device: as those of domain_steps.cpp, with the same results bit
// for bit, but what is computed is launched, and awaited over several rounds. The host meets payloads only.
// One rank is a node here, since the aggregation inside a node is in the host's memory.
#include "domain.hpp"

namespace gf {

namespace {
constexpr double kSettle = 5;  // seconds for kernels to end in when their domain has failed
}

bool Domain::on_device(const At &at) { return at.run->unit && at.run->unit->gpu; }

Workers &Domain::workers_of(const Unit &unit) {
  const auto [found, first] = workers_.try_emplace({unit.gpu, unit.device});
  if (first) {
    for (Worker *w : {&found->second.sum, &found->second.reduce, &found->second.receive})
      w->open(unit.gpu, unit.device, topology_.nodes.size(), options_.chunk_bytes, capacity_,
              Shared::kEnergies);
  }
  return found->second;
}

void Domain::settle_devices() {
  const double until = now() + kSettle;
  for (auto &entry : workers_) {
    for (Worker *w : {&entry.second.sum, &entry.second.reduce, &entry.second.receive}) w->settle(until);
  }
}

bool Domain::device_busy() const {
  for (const auto &entry : workers_) {
    for (const Worker *w : {&entry.second.sum, &entry.second.reduce, &entry.second.receive})
      if (w->waits()) return true;
  }
  return false;
}

// Units whose tensors are in their bucket by now: only then can be said whether they are finite.
void Domain::announce_gathered() {
  for (size_t i = 0; i < gathering_.size();) {
    const UnitPtr unit = gathering_[i];
    int done = 0, error = unit->gpu->set_device(unit->device);
    if (!error) error = unit->gpu->event_done(unit->gathered, &done);
    if (error) {
      throw StepError{Failure::kInternal, "tensor '" + unit->name + "' on " + unit->gpu->name + ":" +
                                              std::to_string(unit->device) + ": " +
                                              unit->gpu->error_text(error)};
    }
    if (!done) {
      ++i;
      continue;
    }
    gathering_.erase(gathering_.begin() + static_cast<std::ptrdiff_t>(i));
    if (unit->gathered_finite) unit->finite = unit->finite && *unit->gathered_finite != 0;
    unit->is_gathered = true;
    announce(unit);
  }
}

// The energies of a unit's tensors, for an agreement on steps; rare, so it waits.
std::vector<double> Domain::device_energies(const Unit &unit, const std::vector<uint64_t> &ends) {
  Worker &w = workers_of(unit).sum;
  std::vector<double> found;
  const auto *x = static_cast<const float *>(unit.input);
  constexpr size_t kMost = Shared::kEnergies;
  uint64_t begin = 0;
  for (size_t first = 0; first < ends.size(); first += kMost) {
    const size_t count = std::min(kMost, ends.size() - first);
    std::vector<uint64_t> part(ends.begin() + static_cast<std::ptrdiff_t>(first),
                               ends.begin() + static_cast<std::ptrdiff_t>(first + count));
    const uint64_t last = part.back();
    for (uint64_t &end : part) end -= begin;
    std::vector<double> pairs(2 * count);
    w.use();
    double *const out = w.energies(0, count);
    w.ok(w.gpu()->energies(x + begin, nullptr, part.data(), count, out, w.stream()), "energies");
    w.ok(w.gpu()->copy(pairs.data(), out, pairs.size() * sizeof(double), GF_GPU_TO_HOST, w.stream(), 1),
         "copying energies");
    for (size_t i = 0; i < count; ++i) found.push_back(pairs[2 * i]);
    begin = last;
  }
  return found;
}

bool Domain::sum_on_device(const At &at) {
  Worker &w = workers_of(*at.run->unit).sum;
  const int peer = topology_.owner(at.home, at.slice);
  auto &slots = scatter_slots_[peer];
  SendSlot &slot = slots[scatter_counts_[peer] % slots.size()];
  const size_t energies = measured_ends(at).size();
  switch (w.phase) {
    case Phase::kIdle:
      if (!scatter_.may_send(peer) || !slot.free()) return false;
      w.begin();
      slot.reserve_pinned(capacity_, w);
      launch_own(at, &w);
      launch_back_up(at, &w);
      launch_encode(at, &w, at.run->stepped() ? &at.run->steps.first : nullptr, w.x, 0, 0);
      w.report(energies);
      w.phase = Phase::kEncoding;
      return true;
    case Phase::kEncoding:
      if (!w.done()) return false;
      w.own = w.answered_energies(0, energies);
      w.ok(w.gpu()->copy(slot.payload(), w.payload, w.answer().size, GF_GPU_TO_HOST, w.stream(), 0),
           "copying a payload");
      w.report(0);
      w.phase = Phase::kFinishing;
      return true;
    default:
      if (!w.done()) return false;
      w.phase = Phase::kIdle;
      ++scatter_counts_[peer];
      send(at, &scatter_, &slot, {peer}, w.answer().size, 0, w.own);
      advance(&summing_);
      return true;
  }
}

// A chunk that nobody sends (Domain::owe): its part goes to the residual, and the result is zero.
bool Domain::owe_on_device(const At &at) {
  Worker &w = workers_of(*at.run->unit).sum;
  if (w.phase == Phase::kIdle) {
    w.begin();
    if (float *owed = residual(at)) {
      launch_own(at, &w);
      launch_sum(&w, owed, owed, w.x, 1.0, at.count, nullptr);
      w.ok(w.gpu()->bound(owed, at.count, nullptr, w.stream()), "bounding");
    }
    w.ok(w.gpu()->fill(output(at), 0, at.count * at.run->spec.element_bytes(), w.stream()), "clearing");
    w.report(0);
    w.phase = Phase::kFinishing;
    return true;
  }
  if (!w.done()) return false;
  result_is_there(at, &w);
  advance(&summing_);
  return true;
}

// One payload of another node, added where it arrives; false if there is none, or no room for it.
bool Domain::collect_on_device(const At &at, Worker *w) {
  const int peer = topology_.owner(reduce_node_, at.slice);
  Arrival arrival;
  if (!scatter_.front(peer, &arrival)) return false;
  Worker::Staging *place = w->staging();
  if (!place) return false;
  if (arrival.chunk != at.g) check(at, peer, GF_WIRE_CONTENT);
  w->bring(place, arrival.payload, arrival.bytes);
  int32_t *status = w->status_of(static_cast<size_t>(reduce_node_));
  if (at.run->stepped()) {
    launch_add_codes(at, w, place->device, arrival.bytes, status);
  } else {
    launch_decode(at, w, place->device, arrival.bytes, w->total, at.home <= 1 || reduce_node_ > 0, status);
  }
  w->consumed(place);
  collect(arrival, &reduce_energies_[reduce_node_]);
  reduce_bytes_ += arrival.bytes;
  scatter_.consume(peer);
  return true;
}

// The statistics of a chunk that is reduced here: those of the other nodes' parts, and of ours.
Statistics Domain::reduced_statistics(const At &at, const Worker &w, size_t peers, size_t bytes) {
  std::vector<Energy> &mine = reduce_energies_[topology_.node];
  const size_t count = measured_ends(at).size();
  const std::vector<Energy> total = w.answered_energies(1, count);
  if (!at.run->stepped()) {
    mine = total;
    for (Energy &e : mine) e.total = e.gradient;
  } else {
    mine = w.own;
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i].total = total[i].gradient;
      mine[i].residual += total[i].residual;
    }
  }
  Statistics statistics;
  statistics.bytes = reduce_bytes_ + peers * bytes;
  for (auto &part : reduce_energies_) {
    add_up(part, &statistics.energies);
    part.clear();
  }
  return statistics;
}

bool Domain::reduce_on_device(const At &at) {
  Worker &w = workers_of(*at.run->unit).reduce;
  const bool stepped = at.run->stepped(), exact = stepped && at.run->steps.exact;
  const size_t energies = measured_ends(at).size();
  SendSlot &slot = gather_slots_[gather_count_ % gather_slots_.size()];
  bool moved = false;
  if (w.phase == Phase::kIdle) {
    w.begin();
    launch_own(at, &w);
    if (stepped) {
      w.ok(w.gpu()->fill(w.total, 0, at.count * sizeof(float), w.stream()), "clearing");
    } else if (at.home <= 1) {
      launch_sum(&w, w.total, w.x, nullptr, 1.0, at.count, nullptr);
    }
    if (exact) {
      launch_back_up(at, &w);
      launch_encode(at, &w, &at.run->steps.first, w.x, 1, 0);
      w.report(energies);
    }
    w.phase = exact ? Phase::kOwn : Phase::kCollecting;
    moved = true;
  }
  if (w.phase == Phase::kOwn) {
    if (!w.done()) return moved;
    w.own = w.answered_energies(0, energies);
    launch_add_codes(at, &w, w.payload, w.answer().size, w.status_of(static_cast<size_t>(topology_.node)));
    w.phase = Phase::kCollecting;
    moved = true;
  }
  const std::vector<int> peers = other_owners(at);
  if (w.phase == Phase::kCollecting) {
    for (; reduce_node_ < topology_.node_count(); ++reduce_node_) {
      if (reduce_node_ != topology_.node) {
        if (!collect_on_device(at, &w)) return moved;
        moved = true;
      } else if (at.home > 1 && !stepped) {
        launch_sum(&w, w.total, w.total, w.x, 1.0, at.count, nullptr);
      }
    }
    for (int peer : peers) {
      if (!gather_.may_send(peer)) return moved;
    }
    if (!slot.free()) return moved;
    slot.reserve_pinned(capacity_, w);
    if (stepped) {
      if (!exact) launch_back_up(at, &w);
      launch_encode_sum(at, &w);
    } else {
      launch_back_up(at, &w);
      if (at.run->spec.home_scale != 1.0)
        launch_sum(&w, w.total, w.total, nullptr, at.run->spec.home_scale, at.count, nullptr);
      launch_encode(at, &w, nullptr, w.total, 1, 1);
    }
    w.report(energies);
    w.phase = Phase::kEncoding;
    return true;
  }
  if (!w.done()) return moved;
  if (w.phase == Phase::kEncoding) {
    for (int node = 0; node < topology_.node_count(); ++node)
      check(at, topology_.owner(node, at.slice), w.answered_status(static_cast<size_t>(node)));
    auto *result = reinterpret_cast<float *>(output(at));
    const size_t bytes = w.answer().size;
    w.ok(w.gpu()->copy(slot.payload(), w.payload, bytes, GF_GPU_TO_HOST, w.stream(), 0), "copying a payload");
    launch_decode(at, &w, w.payload, bytes, result, false, &w.reported()->status);
    if (stepped && !exact) w.own = w.answered_energies(0, energies);
    if (exact && residual(at)) {  // the home owes what the sum's payload rounds (Domain::owe_rounding)
      w.ok(w.gpu()->owe(residual(at), w.total, result, at.count, w.stream()), "owing");
      launch_energies(at, &w, w.x, residual(at), 0);
    }
    launch_result(at, &w);
    w.report(energies);
    w.phase = Phase::kFinishing;
    return true;
  }
  check(at, topology_.rank, w.answer().status);
  if (exact && residual(at)) w.own = w.answered_energies(0, energies);
  const size_t bytes = w.answer().size;
  w.statistics = reduced_statistics(at, w, peers.size(), bytes);
  ++gather_count_;
  ++sums_used_;
  reduce_node_ = 0;
  send(at, &gather_, &slot, peers, bytes, reduce_bytes_, w.statistics.energies);
  reduce_bytes_ = 0;
  result_is_there(at, &w);
  advance(&reducing_);
  return true;
}

bool Domain::receive_on_device(const At &at) {
  Worker &w = workers_of(*at.run->unit).receive;
  const int peer = topology_.owner(at.home, at.slice);
  if (w.phase == Phase::kIdle) {
    Arrival arrival;
    if (!gather_.front(peer, &arrival)) return false;
    Worker::Staging *place = w.staging();
    if (!place) return false;
    if (arrival.chunk != at.g) check(at, peer, GF_WIRE_CONTENT);
    w.begin();
    w.bring(place, arrival.payload, arrival.bytes);
    launch_decode(at, &w, place->device, arrival.bytes, reinterpret_cast<float *>(output(at)), false,
                  &w.reported()->status);
    w.consumed(place);
    launch_result(at, &w);
    w.report(0);
    collect(arrival, &w.statistics.energies);
    w.statistics.bytes = arrival.first_bytes + (topology_.nodes.size() - 1) * arrival.bytes;
    gather_.consume(peer);
    w.phase = Phase::kFinishing;
    return true;
  }
  if (!w.done()) return false;
  check(at, peer, w.answer().status);
  result_is_there(at, &w);
  advance(&receiving_);
  return true;
}

// After a unit whose result is not finite: what it owed becomes what it was.
void Domain::restore_on_device(const Unit &unit, uint64_t begin, uint64_t count) {
  Worker &w = workers_of(unit).sum;
  w.use();
  w.ok(w.gpu()->copy(unit.residual + begin, unit.backup + begin, count * sizeof(float), GF_GPU_WITHIN,
                     w.stream(), 1),
       "putting the residual back");
}

}  // namespace gf
