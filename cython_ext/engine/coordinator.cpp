#include "coordinator.hpp"

#include <algorithm>
#include <cstring>

namespace gf {

namespace {
constexpr uint16_t kDeadzone = 8;           // gf_codec_spec.id
constexpr uint64_t kDomainBits = 0xff0000;  // of deadzone's params[1]
}  // namespace

std::string list_of(const std::vector<int> &ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text + "]";
}

namespace {

void put(Writer *w, const Agreement &agreement) {
  w->put(static_cast<uint8_t>(agreement.fresh));
  w->put(static_cast<uint64_t>(agreement.ends.size()));
  for (size_t i = 0; i < agreement.ends.size(); ++i) {
    w->put(agreement.ends[i]);
    w->put(agreement.energies[i]);
  }
}

void get(Reader *r, Agreement *agreement) {
  agreement->fresh = r->get<uint8_t>() != 0;
  const auto count = r->get<uint64_t>();
  for (uint64_t i = 0; i < count && !r->bad(); ++i) {
    agreement->ends.push_back(r->get<uint64_t>());
    agreement->energies.push_back(r->get<double>());
  }
}

}  // namespace

std::vector<uint8_t> pack(const UnitSpec &spec, const Agreement &agreement) {
  Writer w;
  w.put(spec);
  put(&w, agreement);
  return std::move(w.bytes);
}

bool unpack(const uint8_t *data, size_t bytes, UnitSpec *spec, Agreement *agreement) {
  Reader r(data, bytes);
  *spec = r.get<UnitSpec>();
  get(&r, agreement);
  return !r.bad();
}

std::vector<uint8_t> pack(const Announcement &a) {
  Writer w;
  w.put(a.spec);
  w.put(a.digest);
  w.put(static_cast<uint8_t>(a.finite));
  w.text(a.name);
  w.text(a.manifest);
  put(&w, a.agreement);
  return std::move(w.bytes);
}

bool unpack(const uint8_t *data, size_t bytes, Announcement *a) {
  Reader r(data, bytes);
  a->spec = r.get<UnitSpec>();
  a->digest = r.get<uint64_t>();
  a->finite = r.get<uint8_t>() != 0;
  a->name = r.text();
  a->manifest = r.text();
  get(&r, &a->agreement);
  return !r.bad();
}

void Coordinator::open(int size, const Options &options, Go go, Fail fail, Warn warn, Joined joined) {
  size_ = size;
  options_ = options;
  go_ = std::move(go);
  fail_ = std::move(fail);
  warn_ = std::move(warn);
  joined_ = std::move(joined);
  has_joined_.assign(static_cast<size_t>(size), false);
  has_ended_.assign(static_cast<size_t>(size), false);
}

void Coordinator::announce(int rank, Announcement announcement) {
  const uint64_t key = announcement.spec.name_hash;
  last_word_ = now();
  if (!announcement.manifest.empty()) manifests_[announcement.digest] = announcement.manifest;
  Pending &pending = pending_[key];
  if (pending.said.empty()) {
    pending.name = announcement.name;
    pending.since = now();
    pending.arrival = arrivals_++;
  }
  pending.said[rank] = std::move(announcement);
  if (byes_ && gone(pending)) return;
  consider(key);
}

void Coordinator::join(int rank) {
  if (has_joined_[rank]) return;
  has_joined_[rank] = true;
  ++joined_count_;
  last_joined_ = rank;
  last_word_ = now();
  consider_all();
  check_join();
  if (joined_count_ == size_ && pending_.empty()) {
    has_joined_.assign(static_cast<size_t>(size_), false);
    joined_count_ = 0;
    joined_(last_joined_);
  }
}

void Coordinator::bye(int rank) {
  if (has_ended_[rank]) return;
  has_ended_[rank] = true;
  ++byes_;
  for (auto &entry : pending_) {
    if (gone(entry.second)) return;
  }
  check_join();
}

std::vector<int> Coordinator::not_joined(bool ended_only) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_joined_[rank] && (has_ended_[rank] || !ended_only)) ranks.push_back(rank);
  }
  return ranks;
}

// Fails if some rank waits in a join for one that has ended.
void Coordinator::check_join() {
  if (joined_count_ == 0 || byes_ == 0) return;
  const std::vector<int> ended = not_joined(true);
  if (!ended.empty()) fail_(Failure::kPeer, "join: ranks " + list_of(ended) + " have ended without joining");
}

// Fails if a rank that ended is missed by this unit.
bool Coordinator::gone(const Pending &pending) {
  std::vector<int> ended;
  for (int rank : missing(pending)) {
    if (has_ended_[rank]) ended.push_back(rank);
  }
  if (ended.empty()) return false;
  fail_(Failure::kPeer, "tensor '" + pending.name + "', step " +
                            std::to_string(pending.said.begin()->second.spec.sequence) + ": ranks " +
                            list_of(ended) + " have ended without submitting it");
  return true;
}

std::vector<int> Coordinator::missing(const Pending &pending) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_joined_[rank] && !pending.said.count(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Coordinator::consider_all() {
  std::vector<std::pair<uint64_t, uint64_t>> order;
  for (auto &entry : pending_) order.emplace_back(entry.second.arrival, entry.first);
  std::sort(order.begin(), order.end());
  for (auto &item : order) consider(item.second);
}

void Coordinator::consider(uint64_t key) {
  auto found = pending_.find(key);
  if (found == pending_.end()) return;
  // Cheap and never wrong: a rank that announced and then joined is counted twice.
  if (found->second.said.size() + static_cast<size_t>(joined_count_) < static_cast<size_t>(size_)) return;
  if (!missing(found->second).empty()) return;
  Pending pending = std::move(found->second);
  pending_.erase(found);
  bool finite = true;
  const Announcement &first = pending.said.begin()->second;
  Agreement agreement;
  for (auto &entry : pending.said) {
    const Announcement &a = entry.second;
    finite = finite && a.finite;
    if (std::memcmp(&a.spec, &first.spec, sizeof a.spec) != 0 || a.digest != first.digest ||
        a.name != first.name) {
      disagree(pending);
      return;
    }
    // In order of rank, so that the sums are the same whoever came first.
    if (agreement.ends.empty()) {
      agreement = a.agreement;
    } else {
      agreement.fresh = agreement.fresh || a.agreement.fresh;
      for (size_t i = 0; i < a.agreement.energies.size() && i < agreement.energies.size(); ++i)
        agreement.energies[i] += a.agreement.energies[i];
    }
  }
  UnitSpec spec = first.spec;
  if (!finite) spec.flags |= kNonFinite;
  // A joined rank does not know the tensors of the unit, so it could not take part in their statistics.
  if (joined_count_) spec.flags &= ~static_cast<uint32_t>(kStatistics);
  if (!spec.split) {
    go_(spec, agreement);
    return;
  }
  spec.part = Part::kFirst;
  go_(spec, agreement);
  spec.part = Part::kSecond;
  waiting_.push_back({spec, now()});
}

bool Coordinator::release(double time, bool idle) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    // A rank that has joined keeps nothing for later, and what is not finite must be seen at once.
    const bool late = it->spec.deadline > 0 && time - it->since > it->spec.deadline && joined_count_ == 0 &&
                      !(it->spec.flags & kNonFinite) && !late_.count(it->spec.name_hash);
    if (!late && !(idle && it == waiting_.begin())) continue;
    UnitSpec spec = it->spec;
    waiting_.erase(it);
    late_.erase(spec.name_hash);
    if (late) {
      spec.flags |= kLate;
      late_.insert(spec.name_hash);
    }
    go_(spec, Agreement());
    return true;
  }
  return false;
}

// The largest group that agrees is what was expected; of two alike, the one with the lowest rank.
void Coordinator::disagree(const Pending &pending) {
  std::vector<std::vector<int>> groups;
  for (auto &entry : pending.said) {
    bool placed = false;
    for (auto &group : groups) {
      const Announcement &other = pending.said.at(group.front());
      if (std::memcmp(&other.spec, &entry.second.spec, sizeof(UnitSpec)) == 0 &&
          other.digest == entry.second.digest && other.name == entry.second.name) {
        group.push_back(entry.first);
        placed = true;
        break;
      }
    }
    if (!placed) groups.push_back({entry.first});
  }
  std::stable_sort(groups.begin(), groups.end(), [](auto &a, auto &b) { return a.size() > b.size(); });
  const Announcement &expected = pending.said.at(groups[0].front());
  std::string text;
  for (size_t i = 1; i < groups.size(); ++i) {
    const Announcement &got = pending.said.at(groups[i].front());
    text += (i > 1 ? "; " : "") + difference(expected, got, manifests_[expected.digest],
                                             manifests_[got.digest], list_of(groups[i]));
  }
  fail_(Failure::kMismatch, text);
}

void Coordinator::watch(double time) {
  if (joined_count_ > 0 && time - last_word_ > options_.submit_timeout) {
    fail_(Failure::kPeer,
          "join: ranks " + list_of(not_joined(false)) + " have neither joined nor submitted anything for " +
              std::to_string(static_cast<long>(options_.submit_timeout)) + " s (submit_timeout)");
    return;
  }
  for (auto &entry : pending_) {
    Pending &pending = entry.second;
    const double waited = time - pending.since;
    if (waited < options_.submit_warn && waited < options_.submit_timeout) continue;
    const std::string who = "tensor '" + pending.name + "', step " +
                            std::to_string(pending.said.begin()->second.spec.sequence) + ": ranks " +
                            list_of(missing(pending)) + " have not submitted it for " +
                            std::to_string(static_cast<long>(waited)) + " s";
    if (waited >= options_.submit_timeout) {
      fail_(Failure::kPeer, who + " (submit_timeout)");
      return;
    }
    if (!pending.warned) {
      pending.warned = true;
      warn_(who + "; the job fails after " + std::to_string(static_cast<long>(options_.submit_timeout)) +
            " s (GRADFLOW_SUBMIT_TIMEOUT)");
    }
  }
}

void Coordinator::forgive(double seconds) {
  for (auto &entry : pending_) entry.second.since += seconds;
  for (Waiting &second : waiting_) second.since += seconds;
  last_word_ += seconds;
}

namespace {

std::vector<std::string> lines_of(const std::string &text) {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// A line of a manifest: name, elements and the rest, parted by tabs.
std::string field(const std::string &line, int index) {
  size_t at = 0;
  for (; index > 0; --index) {
    at = line.find('\t', at);
    if (at == std::string::npos) return {};
    ++at;
  }
  return line.substr(at, line.find('\t', at) - at);
}

// The fields of a line, from the third on, that another line lacks: of two long descriptions what differs.
std::string without(const std::string &line, const std::string &other) {
  std::vector<std::string> known;
  for (int k = 2; !field(other, k).empty(); ++k) known.push_back(field(other, k));
  std::string text;
  for (int k = 2; !field(line, k).empty(); ++k) {
    const std::string one = field(line, k);
    if (std::find(known.begin(), known.end(), one) == known.end()) text += (text.empty() ? "" : ", ") + one;
  }
  return text.empty() ? "none of these" : text;
}

}  // namespace

std::string difference(const Announcement &expected, const Announcement &got,
                       const std::string &expected_manifest, const std::string &got_manifest,
                       const std::string &ranks) {
  auto about = [&](const std::string &name) {
    return "tensor '" + name + "', step " + std::to_string(expected.spec.sequence) + ": ranks " + ranks;
  };
  const auto want = lines_of(expected_manifest), have = lines_of(got_manifest);
  for (size_t i = 0; i < std::max(want.size(), have.size()); ++i) {
    if (i >= want.size()) return about(field(have[i], 0)) + " sent it, the others have no such tensor";
    if (i >= have.size()) return about(field(want[i], 0)) + " have no such tensor";
    if (want[i] == have[i]) continue;
    const std::string name = field(want[i], 0);
    if (field(have[i], 0) != name)
      return about(field(have[i], 0)) + " sent it where tensor '" + name + "' was expected";
    if (field(have[i], 1) != field(want[i], 1)) {
      return about(name) + " sent " + field(have[i], 1) + " elements, expected " + field(want[i], 1);
    }
    return about(name) + " sent " + without(have[i], want[i]) + ", expected " + without(want[i], have[i]);
  }
  if (got.name != expected.name)
    return about(expected.name) + " sent '" + got.name + "', which has the same hash";
  auto say = [&](const char *what, uint64_t a, uint64_t b) {
    return about(expected.name) + " sent " + what + " " + std::to_string(a) + ", expected " +
           std::to_string(b);
  };
  const UnitSpec &g = got.spec, &e = expected.spec;
  if (g.sequence != e.sequence) return say("step", g.sequence, e.sequence);
  if (g.elements != e.elements) {
    return about(expected.name) + " sent " + std::to_string(g.elements) + " elements, expected " +
           std::to_string(e.elements);
  }
  if (g.dtype != e.dtype) return say("dtype code", g.dtype, e.dtype);
  if (g.codec.id != e.codec.id) return say("codec id", g.codec.id, e.codec.id);
  if (g.codec.block != e.codec.block) return say("block", g.codec.block, e.codec.block);
  if (g.codec.rounding != e.codec.rounding) return say("rounding", g.codec.rounding, e.codec.rounding);
  if (g.flags != e.flags)
    return say("flags (1 not finite, 2 statistics, 4 error feedback, 8 steps, 16 unchecked)", g.flags,
               e.flags);
  gf_codec_spec same_domain = g.codec;
  if (g.codec.id == kDeadzone) same_domain.params[1] ^= (g.codec.params[1] ^ e.codec.params[1]) & kDomainBits;
  if (std::memcmp(&same_domain, &e.codec, sizeof g.codec) != 0)
    return about(expected.name) + " sent other codec options";
  const char *advice = "the optimizers' states differ, broadcast that of one rank";
  if (g.codec.params[1] != e.codec.params[1]) {
    const bool divides = g.codec.params[1] & kDomainBits;
    return about(expected.name) +
           (divides ? " divide it by second moments, which the others have not: "
                    : " have no second moments of it to divide by: ") +
           advice;
  }
  if (g.split != e.split || g.deadline != e.deadline)
    return about(expected.name) + " would send it in two parts otherwise: all ranks need the same options";
  if (g.state != e.state) return about(expected.name) + " divide it by other second moments: " + advice;
  return about(expected.name) + " sent another op or other factors";
}

}  // namespace gf
