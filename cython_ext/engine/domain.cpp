// A domain's life: submitting, starting and ending units. The steps of the chunks are in domain_steps.cpp,
// its end in domain_end.cpp.
#include "domain.hpp"

#include <algorithm>
#include <limits>

namespace gf {

namespace {
constexpr size_t kBeside = sizeof(DataHeader) + 2 * sizeof(Energy);  // of a payload, in its message
}

Domain::Domain(MPI_Comm comm, Transport *between, Topology topology, Options options, void *shared,
               std::string name, const Host *host)
    : mpi_(comm), topology_(std::move(topology)), options_(options), name_(std::move(name)), host_(host) {
  topology_.finish();
  routes_ = Routes{&mpi_, between ? between : &mpi_, &topology_};
  if (shared) shared_ = Shared(shared, topology_.local_size(), options_.slots, options_.chunk_bytes);
}

void Domain::start() {
  last_step_ = now();
  heartbeat_every_ = std::min(5.0, std::max(0.01, options_.progress_timeout / 5));
  control_.open(routes_, &traffic,
                [this](int source, const ControlHeader &header, const uint8_t *body, size_t bytes) {
                  on_control(source, header, body, bytes);
                });
  if (topology_.rank == 0) {
    coordinator_.open(
        topology_.size, options_,
        [this](const UnitSpec &spec, const Agreement &agreement) {
          control_.send_to_others(Message::kGo, 0, 0, pack(spec, agreement));
          go(spec, agreement);
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
  scatter_.open(routes_.between, Transport::kScatter, options_.window, capacity_, peers, topology_.size,
                credit(0));
  gather_.open(routes_.between, Transport::kGather, options_.window, capacity_, peers, topology_.size,
               credit(1));
  scatter_slots_.resize(static_cast<size_t>(topology_.size));
  scatter_counts_.assign(static_cast<size_t>(topology_.size), 0);
  kept_.resize(static_cast<size_t>(topology_.size));
  for (int peer : peers) scatter_slots_[peer].resize(static_cast<size_t>(options_.window));
  gather_slots_.resize(static_cast<size_t>(options_.window));
  // One rank a node has nothing to keep: it reads its own part when the others' are there.
  sums_.resize(shared_ ? static_cast<size_t>(options_.slots) : 1);
  for (auto &sum : sums_) sum.resize(options_.chunk_bytes);
  ahead_ = static_cast<uint64_t>(shared_ ? options_.slots : std::max(options_.slots, options_.window));
  total_.resize(options_.chunk_bytes);
  reduce_energies_.resize(topology_.nodes.size());
}

void Domain::submit(const UnitPtr &unit) {
  if (state != DomainState::kOpen) {
    unit->failure = state == DomainState::kFailed ? failure : Failure::kInternal;
    unit->error = state == DomainState::kFailed ? error : "the reducer '" + name_ + "' is closed";
    host_->finish(unit, UnitState::kFailed);
    return;
  }
  if (!unfinished()) last_step_ = now();
  if (unit->join) {
    begin_join(unit);
    return;
  }
  const auto [versions, first] = versions_.try_emplace(unit->spec.name_hash);
  if (first) {
    announce(unit);
  } else {
    versions->second.push_back(unit);
    ++queued_;
  }
}

void Domain::announce(const UnitPtr &unit) {
  if (unit->gpu && !unit->is_gathered) {
    unit->gathering_since = now();
    gathering_.push_back(unit);
    return;
  }
  submitted_[unit->spec.name_hash] = unit;
  if (unit->residual && unit->rescale) {
    constexpr float kMost = std::numeric_limits<float>::max();
    for (uint64_t i = 0; i < unit->spec.elements; ++i)
      unit->residual[i] = std::min(std::max(unit->residual[i] * unit->rescale[i], -kMost), kMost);
  }
  Announcement a;
  a.spec = unit->spec;
  a.digest = unit->digest;
  a.finite = unit->finite;
  a.name = unit->name;
  a.agreement = inputs(*unit);
  if (digests_told_.insert(unit->digest).second) a.manifest = unit->manifest;
  if (topology_.rank == 0) {
    coordinator_.announce(0, std::move(a));
  } else {
    control_.send(0, Message::kAnnounce, 0, 0, pack(a));
  }
}

// Not where a version ends, in the middle of a step: an announcement may make the domain fail.
void Domain::announce_next() {
  while (!ended_.empty()) {
    std::vector<UnitPtr> &queue = versions_[ended_.front()];
    ended_.pop_front();
    UnitPtr unit = std::move(queue.front());
    queue.erase(queue.begin());
    --queued_;
    announce(unit);
  }
  if (join_ && !join_told_ && all_announced()) tell_join();
}

void Domain::begin_join(const UnitPtr &unit) {
  if (join_) {
    end_failed(unit, Failure::kInternal, "this rank has joined already; wait for that");
    return;
  }
  join_ = unit;
  if (all_announced()) tell_join();
}

void Domain::tell_join() {
  join_told_ = true;
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
  join_told_ = false;
  unit->value = last;
  host_->finish(unit, UnitState::kDone);
}

void Domain::go(const UnitSpec &spec, const Agreement &agreement) {
  Running run;
  run.spec = spec;
  run.agreement = agreement;
  if (agreement.fresh) forgotten_.erase(spec.name_hash);
  const auto key = std::make_pair(spec.name_hash, spec.sequence);
  auto found = submitted_.find(spec.name_hash);
  if (spec.part == Part::kSecond) {
    Halves &halves = halves_[key];
    run.unit = halves.unit;
    run.agreement = halves.agreement;
    halves.late = run.late();
  } else if (found != submitted_.end()) {
    run.unit = found->second;
    submitted_.erase(found);
    if (spec.flags & kNonFinite) run.unit->finite = false;
    run.unit->started = now();
    run.unit->state.store(UnitState::kRunning);
  }
  if (spec.part == Part::kFirst) {
    halves_[key].unit = run.unit;
    halves_[key].agreement = agreement;
  }
  run.ops = host_->find_codec(spec.codec.id);
  auto refuse = [&](const std::string &text) {
    end_failed(run.unit, Failure::kInternal, text);
    fail(Failure::kInternal, text, true);
  };
  if (!run.ops) return refuse("no codec has the id " + std::to_string(spec.codec.id));
  if (run.unit && run.unit->gpu && (shared_ || topology_.node_count() == 1))
    return refuse("a tensor on a device, where ranks share a node: its sum is made in the host's memory");
  const uint64_t owners = static_cast<uint64_t>(topology_.slices) * topology_.node_count();
  const size_t room = options_.chunk_bytes + options_.chunk_bytes / 8 + 4096;
  // Payloads are as long as MPI sends at once. Longer ones wait for the receiver's word, which waits behind
  // what it sends itself: where both directions were busy, that halved the rate. Where the content decides
  // how long a payload is, the most that it may be says nothing.
  const bool sent = topology_.node_count() > 1 && !(spec.flags & kStepped) && !run.sparse();
  auto most = [&](uint64_t n) -> size_t {
    if (spec.dtype == GF_F64) return n * sizeof(double);
    return run.ops->max_encoded_size(run.ops->ctx, &spec.codec, n);
  };
  run.lossy = may_miss(run);
  size_t eager = sent ? options_.eager_bytes : room;
  uint64_t least = Geometry::kSmallest;
  if (run.lossy) {  // what is given up is little: what fits into a packet, if it is known what does
    eager = most(Geometry::smallest(spec));
    const size_t piece = routes_.between->piece();
    if (sent && piece > kBeside) {
      least = Geometry::kPiece;
      eager = std::max(piece - kBeside, most(Geometry::smallest(spec, least)));
    }
  }
  run.geometry = Geometry::of(spec, options_.chunk_bytes, owners, most, eager, room, least);
  if (most(run.geometry.chunk) > room) {
    return refuse("a block of the codec with id " + std::to_string(spec.codec.id) + " may need more than " +
                  std::to_string(room) + " bytes: raise GRADFLOW_CHUNK_KIB");
  }
  run.first = next_chunk_;
  run.remaining = run.geometry.chunks;
  if (run.measured()) run.statistics.resize(run.geometry.chunks);
  next_chunk_ += run.geometry.chunks;
  last_step_ = now();
  if (run.geometry.chunks == 0) {
    finish(&run);
  } else {
    running_.push_back(std::move(run));
  }
}

// Whether a second part may go: with more under way, what comes next and is urgent would wait behind it.
bool Domain::idle() const {
  const auto most = static_cast<uint64_t>(2 * options_.window * topology_.node_count());
  uint64_t under_way = 0;
  for (const Running &run : running_) under_way += run.remaining;
  return under_way < most;
}

// Of a unit, or of a part of one. Energies are added in order of chunk, so that all ranks get the same sums.
Statistics Domain::statistics_of(const Running &run) const {
  Statistics sums;
  const Geometry &geometry = run.geometry;
  const std::vector<uint64_t> ends = ends_of(run);
  sums.energies.resize(ends.size());
  for (uint64_t c = 0; c < run.statistics.size(); ++c) {
    const uint64_t begin = geometry.begin + c * geometry.chunk;
    size_t tensor = first_tensor(ends, begin);
    sums.bytes += run.statistics[c].bytes;
    for (const Energy &e : run.statistics[c].energies) {
      if (tensor >= sums.energies.size()) break;
      sums.energies[tensor++] += e;
    }
    // More tensors than a message has room for: nobody knows the energies of the others.
    if (run.steps.ends.empty()) continue;
    const uint64_t end = std::min(begin + geometry.chunk, geometry.end);
    for (; tensor <= first_tensor(ends, end - 1); ++tensor)
      sums.energies[tensor].total = std::numeric_limits<double>::quiet_NaN();
  }
  return sums;
}

// This rank has all chunks of the unit, or of a part of it.
void Domain::finish(Running *run) {
  steps_known(run);  // every rank learns, also one that owns no chunk of it
  Statistics sums = statistics_of(*run);
  bool late = false;
  if (run->spec.part != Part::kWhole) {
    const auto found = halves_.find({run->spec.name_hash, run->spec.sequence});
    Halves &halves = found->second;
    halves.parts[run->spec.part == Part::kSecond] = std::move(sums);
    if (--halves.left) {
      run->unit.reset();
      return;
    }
    late = halves.late;
    sums = std::move(halves.parts[0]);
    add_up(halves.parts[1].energies, &sums.energies);
    sums.bytes += halves.parts[1].bytes;
    halves_.erase(found);
  }
  ++traffic.units;
  if (late) {
    ++traffic.late;
    sums = Statistics();
  }
  // A gradient that is not finite says nothing about the next one, nor one of which a part is missing.
  if (!run->steps.ends.empty() && !(run->spec.flags & kNonFinite) && !run->spoiled && !late) {
    controls_[run->spec.name_hash].learn(sums.energies, sums.bytes, topology_.node_count());
  }
  if (!run->unit) return;
  if (run->spoiled) {
    restore(*run);
    run->unit->finite = false;
  }
  UnitPtr unit = std::move(run->unit);
  run->unit.reset();
  // Stepped units have them anyway; whoever decides from them must have what all ranks have, and ranks that
  // have joined decide nothing.
  if (run->spec.flags & kStatistics) unit->statistics = std::move(sums);
  host_->finish(unit, UnitState::kDone);
  const auto versions = versions_.find(run->spec.name_hash);
  if (versions == versions_.end()) return;
  if (versions->second.empty()) {
    versions_.erase(versions);
  } else {
    ended_.push_back(run->spec.name_hash);
  }
}

// Where the unit's tensors end; a rank that has joined knows it of stepped units only.
std::vector<uint64_t> Domain::ends_of(const Running &run) {
  if (!run.steps.ends.empty()) return run.steps.ends;
  if (run.unit && !run.unit->ends.empty()) return run.unit->ends;
  return {run.spec.elements};
}

size_t Domain::first_tensor(const std::vector<uint64_t> &ends, uint64_t element) {
  return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), element) - ends.begin());
}

// Units end in any order on a rank, but leave the queue in the common one.
void Domain::retire() {
  while (!running_.empty() && running_.front().remaining == 0) {
    const uint64_t name = running_.front().spec.name_hash;
    running_.pop_front();
    ++retired_;
    if (forgotten_.count(name) && !runs(name)) {
      forgotten_.erase(name);
      controls_.erase(name);
    }
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
    case Message::kGo: {
      UnitSpec spec;
      Agreement agreement;
      if (unpack(body, bytes, &spec, &agreement)) {
        go(spec, agreement);
      } else {
        fail(Failure::kInternal, "a message of rank " + std::to_string(source) + " cannot be read", true);
      }
    } break;
    case Message::kCredit:
      (header.a == 0 ? scatter_ : gather_).acknowledged(source, header.b);
      break;
    case Message::kFail:
      fail(static_cast<Failure>(header.a), std::string(reinterpret_cast<const char *>(body), bytes), false);
      break;
    case Message::kBye:
      coordinator_.bye(source);
      break;
    case Message::kSettled:
      coordinator_.settle();
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

// Small chunks are taken several at a time, or looking at messages would take longer than they do.
int Domain::turns_of(const Running &run) {
  constexpr uint64_t kElements = 32768;
  return static_cast<int>(std::clamp<uint64_t>(kElements / std::max<uint64_t>(run.geometry.chunk, 1), 1, 32));
}

bool Domain::progress(double time) {
  if (state == DomainState::kClosed) return false;
  bool moved = false;
  try {
    moved = control_.progress();
    if (state == DomainState::kFailed || state == DomainState::kClosed) return moved;
    bool stepped = false;
    if (!running_.empty()) {
      const int turns = turns_of(running_.front());
      for (auto step : {&Domain::step_copy, &Domain::step_receive, &Domain::step_reduce, &Domain::step_sum,
                        &Domain::step_stage}) {
        for (int i = 0; i < turns && (this->*step)(); ++i) stepped = true;
      }
      retire();
    }
    if (stepped) last_step_ = time;
    moved |= stepped;
    announce_gathered();
    announce_next();
    while (state != DomainState::kFailed && topology_.rank == 0 && coordinator_.release(time, idle()))
      moved = true;
    if (state == DomainState::kFailed) return true;
    watch(time);
  } catch (const TransportError &e) {
    fail(Failure::kInternal, e.text, true);
  } catch (const StepError &e) {
    const std::string where = subject() + ", rank " + std::to_string(topology_.rank) + ": ";
    fail(e.kind, e.anonymous ? where + e.text : e.text, true);
  }
  return moved;
}

}  // namespace gf
