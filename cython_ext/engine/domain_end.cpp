// A domain's end, well or badly: closing, failing, watching the clock. The text to it is "Every wait ends" in
// docs/architecture.md.
#include <algorithm>

#include "domain.hpp"

namespace gf {

namespace {
constexpr double kFarewell = 2;  // seconds to tell the others of a failure

std::string limit_text(double seconds, const char *which) {
  const std::string text = std::to_string(seconds);
  return text.substr(0, text.find('.') + 2) + " s (GRADFLOW_" + which + "_TIMEOUT)";
}
}  // namespace

void Domain::request_close() {
  if (state != DomainState::kOpen) return;
  state = DomainState::kClosing;
}

void Domain::fail(Failure kind, const std::string &text, bool tell) {
  if (state == DomainState::kFailed || state == DomainState::kClosed) return;
  state = DomainState::kFailed;
  failure = kind;
  error = text;
  if (tell) {
    const auto *p = reinterpret_cast<const uint8_t *>(text.data());
    try {
      control_.send_to_others(Message::kFail, static_cast<uint32_t>(kind), 0,
                              std::vector<uint8_t>(p, p + text.size()));
    } catch (const TransportError &) {  // they will miss this rank's heartbeats
    }
  }
  settle_devices();  // whoever waits for a unit may free its memory
  last_step_ = now();
  end_running(text);
  end_submitted(text);
}

void Domain::end_running(const std::string &text) {
  for (Running &run : running_) {
    if (run.spec.part == Part::kWhole) end_failed(run.unit, failure, text);
  }
  for (auto &entry : halves_) end_failed(entry.second.unit, failure, text);
  running_.clear();
  halves_.clear();
}

void Domain::end_failed(const UnitPtr &unit, Failure kind, const std::string &text) {
  if (!unit || unit->state.load() == UnitState::kFailed) return;
  unit->failure = kind;
  unit->error = text;
  host_->finish(unit, UnitState::kFailed);
}

// Ends what was never started.
void Domain::end_submitted(const std::string &text) {
  const Failure kind = failure == Failure::kNone ? Failure::kPeer : failure;
  for (auto &entry : submitted_) end_failed(entry.second, kind, text);
  for (const UnitPtr &unit : gathering_) end_failed(unit, kind, text);
  for (auto &entry : versions_) {
    for (const UnitPtr &unit : entry.second) end_failed(unit, kind, text);
  }
  end_failed(join_, kind, text);
  submitted_.clear();
  gathering_.clear();
  versions_.clear();
  ended_.clear();
  queued_ = 0;
  join_.reset();
}

bool Domain::active() const {
  if (state == DomainState::kFailed) return control_.sending() && now() - last_step_ < kFarewell;
  if (state == DomainState::kClosed) return false;
  return ending_ || unfinished() || control_.sending() || routes_.between->busy();
}

bool Domain::unfinished() const {
  return !submitted_.empty() || !gathering_.empty() || !running_.empty() || !halves_.empty() || join_;
}

void Domain::forgive(double seconds) {
  last_step_ += seconds;
  for (const UnitPtr &unit : gathering_) unit->gathering_since += seconds;
  control_.forgive(seconds);
  coordinator_.forgive(seconds);
}

void Domain::watch(double time) {
  if (time - last_heartbeat_ >= heartbeat_every_) {
    last_heartbeat_ = time;
    if (topology_.rank == 0) {
      control_.send_to_others(Message::kHeartbeat, 0, 0);
    } else {
      control_.send(0, Message::kHeartbeat, 0, 0);
    }
  }
  const bool coordinates = topology_.rank == 0;
  if (coordinates) coordinator_.watch(time);
  if (state == DomainState::kFailed) return;
  if (state == DomainState::kClosing && running_.empty() && halves_.empty() && all_announced() &&
      !bye_told_) {
    bye_told_ = true;
    if (coordinates) {
      coordinator_.bye(0);
    } else {
      control_.send(0, Message::kBye, 0, 0);
    }
  }
  // Whoever has heard the end may leave, and with the first to leave Horovod ends MPI on all ranks: so nobody
  // hears it while somebody has work left.
  if (bye_told_ && !settled_told_ && !unfinished()) {
    settled_told_ = true;
    if (coordinates) {
      coordinator_.settle();
    } else {
      control_.send(0, Message::kSettled, 0, 0);
    }
  }
  if (coordinates && coordinator_.all_settled() && !ending_) {
    ending_ = true;
    control_.send_to_others(Message::kEnd, 0, 0);
  }
  // Who is asked last whether it got the word may be gone already: then nothing answers for it.
  if (ending_ && ended_at_ == 0) ended_at_ = time;
  if (ending_ && running_.empty() && (!control_.sending() || time - ended_at_ > kFarewell)) {
    end_submitted("the reducer '" + name_ + "' was closed before all ranks submitted it");
    state = DomainState::kClosed;
    return;
  }
  for (const UnitPtr &unit : gathering_) {
    if (time - unit->gathering_since <= options_.submit_timeout) continue;
    fail(Failure::kPeer,
         "tensor '" + unit->name + "': rank " + std::to_string(topology_.rank) +
             " has waited for its device, which computes it, for " +
             limit_text(options_.submit_timeout, "SUBMIT"),
         true);
    return;
  }
  const bool waits = unfinished() || bye_told_ || (coordinates && coordinator_.waiting());
  if (!waits) return;
  std::vector<int> silent;
  for (int rank = 0; rank < topology_.size; ++rank) {
    const bool hears = rank != topology_.rank && (coordinates || rank == 0);
    if (hears && time - control_.heard(rank) > options_.progress_timeout) silent.push_back(rank);
  }
  const bool stuck =
      !running_.empty() && time - last_step_ > options_.progress_timeout + 2 * heartbeat_every_;
  if (silent.empty() && !stuck) return;
  const std::string limit = limit_text(options_.progress_timeout, "PROGRESS");
  if (!silent.empty()) {
    fail(Failure::kPeer,
         subject() + ": ranks " + list_of(silent) + " have been silent for " + limit +
             "; they have stopped or died, or cannot be reached",
         true);
  } else {
    fail(Failure::kPeer,
         subject() + ": no progress for " + limit + "; rank " + std::to_string(topology_.rank) +
             (device_busy() ? " waits for its device" : " waits for ranks " + list_of(awaited())),
         true);
  }
}

// What this rank waits for, in words.
std::string Domain::subject() const {
  if (!running_.empty() && running_.front().unit) return "tensor '" + running_.front().unit->name + "'";
  for (const auto &entry : halves_) {
    if (entry.second.unit) return "tensor '" + entry.second.unit->name + "'";
  }
  if (!submitted_.empty()) return "tensor '" + submitted_.begin()->second->name + "'";
  if (!gathering_.empty()) return "tensor '" + gathering_.front()->name + "'";
  return name_;
}

// The ranks that the first unfinished chunk on this rank waits for.
std::vector<int> Domain::awaited() {
  std::vector<int> ranks;
  const auto &here = topology_.nodes[topology_.node];
  At at;
  if (shared_ && resolve(&copying_, &at) && !at.mine) return {topology_.owner(topology_.node, at.slice)};
  while (resolve(&summing_, &at) && !at.mine) advance(&summing_);
  if (resolve(&summing_, &at)) {
    for (int i = 0; i < topology_.local_size(); ++i) {
      if (i != topology_.local && shared_.staged(i, at.g) != at.g + 1) ranks.push_back(here[i]);
    }
    if (!ranks.empty()) return ranks;
  }
  Arrival arrival;
  while (resolve(&reducing_, &at) && !(at.mine && at.at_home && !at.run->late())) advance(&reducing_);
  if (topology_.node_count() > 1 && resolve(&reducing_, &at)) {
    for (int peer : other_owners(at)) {
      if (!scatter_.front(peer, &arrival) || !gather_.may_send(peer)) ranks.push_back(peer);
    }
  }
  while (resolve(&receiving_, &at) && !(at.mine && !at.at_home && !at.run->late())) advance(&receiving_);
  if (resolve(&receiving_, &at)) ranks.push_back(topology_.owner(at.home, at.slice));
  for (int i = 0; shared_ && i < topology_.local_size(); ++i) {
    if (i != topology_.local) ranks.push_back(here[i]);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Domain::release() {
  const bool well = state == DomainState::kClosed;
  mpi_.close();
  if (routes_.between != &mpi_) routes_.between->close();
  control_.close();
  if (!well) return;  // MPI may still read what was sent, and write to what was posted
  scatter_.close();
  gather_.close();
  scatter_slots_.clear();
  gather_slots_.clear();
  for (auto &entry : workers_) {
    for (Worker *w : {&entry.second.sum, &entry.second.reduce, &entry.second.receive}) w->close();
  }
  workers_.clear();
  sums_.clear();
  for (auto *buffer : {&scratch_, &own_, &total_, &zeros_, &codes_, &lost_, &payload_})
    std::vector<uint8_t>().swap(*buffer);
  controls_.clear();
  coordinator_ = Coordinator();
}

bool Domain::abandon(const std::string &text) {
  const bool left = unfinished();
  state = left ? DomainState::kFailed : DomainState::kClosed;
  if (!left) return false;
  failure = Failure::kInternal;
  error = text;
  settle_devices();
  end_running(text);
  end_submitted(text);
  return true;
}

}  // namespace gf
