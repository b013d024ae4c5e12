// A domain's life: submitting, starting and ending units, failing, closing. The steps of the chunks are
// in domain_steps.cpp.
#include "domain.hpp"

#include <algorithm>

namespace gf {

namespace {
constexpr int kScatterTag = 2, kGatherTag = 3;
constexpr double kFarewell = 2;  // seconds to tell the others of a failure
}  // namespace

Domain::Domain(MPI_Comm comm, Topology topology, Options options, void *shared, std::string name,
               const Host *host)
    : comm_(comm), topology_(std::move(topology)), options_(options), name_(std::move(name)), host_(host) {
  topology_.finish();
  if (shared) shared_ = Shared(shared, topology_.local_size(), options_.slots, options_.chunk_bytes);
}

void Domain::start() {
  last_step_ = now();
  heartbeat_every_ = std::min(5.0, std::max(0.01, options_.progress_timeout / 5));
  control_.open(comm_, &topology_, &traffic,
                [this](int source, const ControlHeader &header, const uint8_t *body, size_t bytes) {
                  on_control(source, header, body, bytes);
                });
  if (topology_.rank == 0) {
    coordinator_.open(
        topology_.size, options_,
        [this](const UnitSpec &spec) {
          Writer w;
          w.put(spec);
          control_.send_to_others(Message::kGo, 0, 0, w.bytes);
          go(spec);
        },
        [this](Failure kind, const std::string &text) { fail(kind, text, true); },
        [this](const std::string &text) { host_->warn(text); },
        [this](int last) {
          control_.send_to_others(Message::kJoined, static_cast<uint32_t>(last), 0);
          on_joined(last);
        });
  }
  zeros_.assign(options_.chunk_bytes, 0);
  if (shared_) own_.resize(options_.chunk_bytes);
  scratch_.resize(options_.chunk_bytes);
  if (topology_.node_count() == 1) return;
  std::vector<int> peers;
  for (int slice = 0; slice < topology_.slices; ++slice) {
    if (topology_.owner(topology_.node, slice) != topology_.rank) continue;
    for (int node = 0; node < topology_.node_count(); ++node) {
      if (node != topology_.node) peers.push_back(topology_.owner(node, slice));
    }
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  // A payload may be somewhat longer than what it encodes (headers, a codec's worst case).
  capacity_ = sizeof(DataHeader) + options_.chunk_bytes + options_.chunk_bytes / 8 + 4096 +
              Shared::kEnergies * sizeof(Energy);
  auto credit = [this](uint32_t direction) {
    return [this, direction](int peer, uint64_t count) {
      control_.send(peer, Message::kCredit, direction, count);
    };
  };
  scatter_.open(comm_, kScatterTag, options_.window, capacity_, peers, topology_.size, credit(0));
  gather_.open(comm_, kGatherTag, options_.window, capacity_, peers, topology_.size, credit(1));
  scatter_slots_.resize(static_cast<size_t>(topology_.size));
  scatter_counts_.assign(static_cast<size_t>(topology_.size), 0);
  for (int peer : peers) scatter_slots_[peer].resize(static_cast<size_t>(options_.window));
  gather_slots_.resize(static_cast<size_t>(options_.window));
  sums_.resize(static_cast<size_t>(options_.slots));
  for (auto &sum : sums_) sum.resize(options_.chunk_bytes);
  total_.resize(options_.chunk_bytes);
}

void Domain::submit(const UnitPtr &unit) {
  if (state != DomainState::kOpen) {
    unit->failure = state == DomainState::kFailed ? failure : Failure::kInternal;
    unit->error = state == DomainState::kFailed ? error : "the reducer '" + name_ + "' is closed";
    host_->finish(unit, UnitState::kFailed);
    return;
  }
  if (submitted_.empty() && running_.empty()) last_step_ = now();
  if (unit->join) {
    begin_join(unit);
    return;
  }
  submitted_[unit->spec.name_hash] = unit;
  Announcement a;
  a.spec = unit->spec;
  a.digest = unit->digest;
  a.finite = unit->finite;
  a.name = unit->name;
  if (digests_told_.insert(unit->digest).second) a.manifest = unit->manifest;
  if (topology_.rank == 0) {
    coordinator_.announce(0, std::move(a));
  } else {
    control_.send(0, Message::kAnnounce, 0, 0, pack(a));
  }
}

void Domain::begin_join(const UnitPtr &unit) {
  if (join_) {
    end_failed(unit, Failure::kInternal, "this rank has joined already; wait for that");
    return;
  }
  join_ = unit;
  if (topology_.rank == 0) {
    coordinator_.join(0);
  } else {
    control_.send(0, Message::kJoin, 0, 0);
  }
}

void Domain::on_joined(int last) {
  if (!join_) return;
  UnitPtr unit = std::move(join_);
  join_.reset();
  unit->value = last;
  host_->finish(unit, UnitState::kDone);
}

void Domain::go(const UnitSpec &spec) {
  Running run;
  run.spec = spec;
  auto found = submitted_.find(spec.name_hash);
  if (found != submitted_.end()) {
    run.unit = found->second;
    submitted_.erase(found);
    if (spec.flags & kNonFinite) run.unit->finite = false;
    run.unit->state.store(UnitState::kRunning);
  }
  run.ops = host_->find_codec(spec.codec.id);
  auto refuse = [&](const std::string &text) {
    end_failed(run.unit, Failure::kInternal, text);
    fail(Failure::kInternal, text, true);
  };
  if (!run.ops) return refuse("no codec has the id " + std::to_string(spec.codec.id));
  const uint64_t owners = static_cast<uint64_t>(topology_.slices) * topology_.node_count();
  const size_t room = options_.chunk_bytes + options_.chunk_bytes / 8 + 4096;
  auto fits = [&](uint64_t n) {
    return spec.dtype == GF_F64 || run.ops->max_encoded_size(run.ops->ctx, &spec.codec, n) <= room;
  };
  run.geometry = Geometry::of(spec, options_.chunk_bytes, owners, fits);
  if (!fits(run.geometry.chunk)) {
    return refuse("a block of the codec with id " + std::to_string(spec.codec.id) + " may need more than " +
                  std::to_string(room) + " bytes: raise GRADFLOW_CHUNK_KIB");
  }
  run.first = next_chunk_;
  run.remaining = run.geometry.chunks;
  if (spec.flags & kStatistics) run.energies.resize(run.geometry.chunks);
  next_chunk_ += run.geometry.chunks;
  last_step_ = now();
  if (run.geometry.chunks == 0) {
    finish(&run);
  } else {
    running_.push_back(std::move(run));
  }
}

// This rank has all chunks of the unit. Energies are added in order of chunk, so that all ranks get the
// same sums.
void Domain::finish(Running *run) {
  ++traffic.units;
  if (!run->unit) return;
  UnitPtr unit = std::move(run->unit);
  run->unit.reset();
  unit->energies.assign(std::max<size_t>(unit->ends.size(), 1), Energy{});
  for (uint64_t c = 0; c < run->energies.size(); ++c) {
    size_t tensor = first_tensor(*unit, c * run->geometry.chunk);
    for (const Energy &e : run->energies[c]) {
      if (tensor >= unit->energies.size()) break;
      unit->energies[tensor].gradient += e.gradient;
      unit->energies[tensor].residual += e.residual;
      ++tensor;
    }
  }
  host_->finish(unit, UnitState::kDone);
}

size_t Domain::first_tensor(const Unit &unit, uint64_t element) {
  return static_cast<size_t>(std::upper_bound(unit.ends.begin(), unit.ends.end(), element) -
                             unit.ends.begin());
}

// Units end in any order on a rank, but leave the queue in the common one.
void Domain::retire() {
  while (!running_.empty() && running_.front().remaining == 0) {
    running_.pop_front();
    ++retired_;
  }
}

void Domain::on_control(int source, const ControlHeader &header, const uint8_t *body, size_t bytes) {
  switch (header.kind) {
    case Message::kAnnounce: {
      Announcement a;
      if (unpack(body, bytes, &a)) {
        coordinator_.announce(source, std::move(a));
      } else {
        fail(Failure::kInternal, "an announcement of rank " + std::to_string(source) + " cannot be read",
             true);
      }
      break;
    }
    case Message::kGo:
      go(Reader(body, bytes).get<UnitSpec>());
      break;
    case Message::kCredit:
      (header.a == 0 ? scatter_ : gather_).acknowledged(source, header.b);
      break;
    case Message::kFail:
      fail(static_cast<Failure>(header.a), std::string(reinterpret_cast<const char *>(body), bytes), false);
      break;
    case Message::kBye:
      coordinator_.bye(source);
      break;
    case Message::kEnd:
      ending_ = true;
      break;
    case Message::kJoin:
      coordinator_.join(source);
      break;
    case Message::kJoined:
      on_joined(static_cast<int>(header.a));
      break;
    case Message::kHeartbeat:
      break;
  }
}

void Domain::request_close() {
  if (state != DomainState::kOpen) return;
  state = DomainState::kClosing;
}

void Domain::fail(Failure kind, const std::string &text, bool tell) {
  if (state == DomainState::kFailed || state == DomainState::kClosed) return;
  state = DomainState::kFailed;
  failure = kind;
  error = text;
  last_step_ = now();
  if (tell) {
    const auto *p = reinterpret_cast<const uint8_t *>(text.data());
    control_.send_to_others(Message::kFail, static_cast<uint32_t>(kind), 0,
                            std::vector<uint8_t>(p, p + text.size()));
  }
  for (Running &run : running_) end_failed(run.unit, kind, text);
  end_submitted(text);
  running_.clear();
}

void Domain::end_failed(const UnitPtr &unit, Failure kind, const std::string &text) {
  if (!unit) return;
  unit->failure = kind;
  unit->error = text;
  host_->finish(unit, UnitState::kFailed);
}

// Ends what was never started.
void Domain::end_submitted(const std::string &text) {
  const Failure kind = failure == Failure::kNone ? Failure::kPeer : failure;
  for (auto &entry : submitted_) end_failed(entry.second, kind, text);
  end_failed(join_, kind, text);
  submitted_.clear();
  join_.reset();
}

bool Domain::active() const {
  if (state == DomainState::kFailed) return control_.sending() && now() - last_step_ < kFarewell;
  if (state == DomainState::kClosed) return false;
  return ending_ || !submitted_.empty() || !running_.empty() || join_ || control_.sending();
}

void Domain::forgive(double seconds) {
  last_step_ += seconds;
  control_.forgive(seconds);
  coordinator_.forgive(seconds);
}

bool Domain::progress(double time) {
  if (state == DomainState::kClosed) return false;
  bool moved = false;
  try {
    moved = control_.progress();
    if (state == DomainState::kFailed || state == DomainState::kClosed) return moved;
    bool stepped = false;
    if (!running_.empty()) {
      stepped |= step_copy();
      stepped |= step_receive();
      stepped |= step_reduce();
      stepped |= step_sum();
      stepped |= step_stage();
      retire();
    }
    if (stepped) last_step_ = time;
    moved |= stepped;
    watch(time);
  } catch (const MpiError &e) {
    fail(Failure::kInternal, e.text, true);
  } catch (const StepError &e) {
    fail(e.kind, e.text, true);
  }
  return moved;
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
  if (state == DomainState::kClosing && running_.empty() && !bye_told_) {
    bye_told_ = true;
    if (coordinates) {
      coordinator_.bye(0);
    } else {
      control_.send(0, Message::kBye, 0, 0);
    }
  }
  if (coordinates && coordinator_.all_bye() && !ending_) {
    ending_ = true;
    control_.send_to_others(Message::kEnd, 0, 0);
  }
  if (ending_ && running_.empty() && !control_.sending()) {
    end_submitted("the reducer '" + name_ + "' was closed before all ranks submitted it");
    state = DomainState::kClosed;
    return;
  }
  const bool waits = !submitted_.empty() || !running_.empty() || join_ || bye_told_ ||
                     (coordinates && coordinator_.waiting());
  if (!waits) return;
  std::vector<int> silent;
  for (int rank = 0; rank < topology_.size; ++rank) {
    const bool hears = rank != topology_.rank && (coordinates || rank == 0);
    if (hears && time - control_.heard(rank) > options_.progress_timeout) silent.push_back(rank);
  }
  const bool stuck =
      !running_.empty() && time - last_step_ > options_.progress_timeout + 2 * heartbeat_every_;
  if (silent.empty() && !stuck) return;
  const std::string seconds = std::to_string(options_.progress_timeout);
  const std::string limit = seconds.substr(0, seconds.find('.') + 2) + " s (GRADFLOW_PROGRESS_TIMEOUT)";
  if (!silent.empty()) {
    fail(Failure::kPeer,
         subject() + ": ranks " + list_of(silent) + " have been silent for " + limit +
             "; they have stopped or died, or cannot be reached",
         true);
  } else {
    fail(Failure::kPeer,
         subject() + ": no progress for " + limit + "; rank " + std::to_string(topology_.rank) +
             " waits for ranks " + list_of(awaited()),
         true);
  }
}

// What this rank waits for, in words.
std::string Domain::subject() const {
  if (!running_.empty() && running_.front().unit) return "tensor '" + running_.front().unit->name + "'";
  if (!submitted_.empty()) return "tensor '" + submitted_.begin()->second->name + "'";
  return name_;
}

void Domain::release() {
  const bool well = state == DomainState::kClosed;
  scatter_.close(well);
  gather_.close(well);
  control_.close();
  if (!well) return;  // MPI may still read what was sent
  scatter_slots_.clear();
  gather_slots_.clear();
  sums_.clear();
  for (auto *buffer : {&scratch_, &own_, &total_, &zeros_}) std::vector<uint8_t>().swap(*buffer);
  coordinator_ = Coordinator();
}

bool Domain::abandon(const std::string &text) {
  const bool unfinished = !submitted_.empty() || !running_.empty() || join_;
  state = unfinished ? DomainState::kFailed : DomainState::kClosed;
  if (!unfinished) return false;
  failure = Failure::kInternal;
  error = text;
  for (Running &run : running_) end_failed(run.unit, failure, text);
  end_submitted(text);
  running_.clear();
  return true;
}

}  // namespace gf
