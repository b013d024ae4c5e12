#include "udp_peer.hpp"

#include <algorithm>

namespace gf {

namespace {
constexpr double kLossy = 0.002;   // a rate of loss from which parity is sent
constexpr double kMostLoss = 0.3;  // that parity is made for
constexpr double kLull = 0.2e-3;   // seconds without anything to send, before the end is protected; at least,
constexpr double kMostLull = 2e-3;   // at most, and between them a part of the round trip
constexpr double kCompany = 1e-3;    // seconds that a batch waits for more to come
constexpr double kTailShare = 0.25;  // of a round trip, from one such block to the next
constexpr uint32_t kLooseTail = 2;   // packets of what may be given up that are under its parity
constexpr double kDead = 2.0;        // seconds without an acknowledgement after which a path is given up
constexpr int kMostTimeouts = 3;     // in a row, after which it is sooner, if another one answers
constexpr double kSilent = 0.25;     // seconds; a host that stands still for less has not lost a path
constexpr double kAskDead = 1.0;     // seconds between two questions whether it lives again
}  // namespace

UdpPeer::UdpPeer(UdpShared *shared, int rank, const std::vector<sockaddr_in> &paths)
    : shared_(shared), rank_(rank), inbox_(shared->sizes.segment, rank), queue_(&shared->outbox) {
  for (const sockaddr_in &to : paths) out_.emplace_back(shared->sizes.body + kSealing + kIpUdp, to);
  in_.resize(paths.size());
  body_.resize(shared->sizes.body);
  plain_.resize(shared->sizes.body + Aead::kTag);
}

bool UdpPeer::open(const uint8_t *keys_out, const uint8_t *keys_in, size_t count) {
  return seal_.open(keys_out, count, true) && open_.open(keys_in, count, false);
}

Transport::Ticket UdpPeer::send(int channel, const uint8_t *data, size_t bytes, double weight) {
  const Transport::Ticket ticket =
      shared_->outbox.add(static_cast<uint8_t>(channel), numbers_[channel]++, data, bytes, weight);
  queue_.add(ticket);
  return ticket;
}

void UdpPeer::refuse(const std::string &what) const { throw TransportError{"UDP: " + what}; }

// Measured, or where little was sent so far, what the other direction loses.
double UdpPeer::loss(size_t path) const {
  return std::max(out_[path].congestion().loss(), out_[path].told_loss);
}

bool UdpPeer::lossy(size_t path) const { return shared_->parity && loss(path) > kLossy; }

size_t UdpPeer::living(size_t preferred) const {
  if (!out_[preferred].dead) return preferred;
  for (size_t p = 0; p < out_.size(); ++p) {
    if (!out_[p].dead) return p;
  }
  return preferred;
}

bool UdpPeer::room(size_t path) {
  UdpSocket &socket = *shared_->sockets[path];
  if (socket.room()) return true;
  std::string error;
  socket.flush(&shared_->sent, &error);
  if (!error.empty()) refuse(error);
  return socket.room() != nullptr;
}

bool UdpPeer::seal(size_t path, const uint8_t *body, size_t bytes, double now) {
  if (!room(path)) return false;
  UdpSocket &socket = *shared_->sockets[path];
  uint8_t *to = socket.room();
  PathOut &out = out_[path];
  PacketHeader header;
  header.version_path = static_cast<uint8_t>(PacketHeader::kVersion << 4 | path);
  header.source = static_cast<uint16_t>(shared_->rank);
  header.session = shared_->session;
  header.counter = out.next_counter();
  uint8_t nonce[Aead::kNonce];
  nonce_of(header, nonce);
  std::memcpy(to, &header, sizeof header);
  if (!seal_.covers(header.counter))
    refuse("the keys for rank " + std::to_string(rank_) + " are used up: make a new reducer");
  Aead *key = seal_.at(header.counter);
  if (!key || !key->seal(nonce, to, sizeof header, body, bytes, to + sizeof header)) refuse("AES-GCM failed");
  socket.commit(out.to(), bytes + kSealing);
  out.paced(now, bytes + kSealing + kIpUdp);
  return true;
}

bool UdpPeer::send_data(size_t path, double now) {
  PathOut &out = out_[path];
  const bool keep = lossy(path);
  if (!room(path)) return false;  // nothing is numbered that cannot leave
  segments_.clear();
  const size_t used = queue_.fill(body_.data() + sizeof(DataBody), shared_->sizes.frames, &segments_);
  if (segments_.empty()) return false;
  if (queue_.batches() != batches_) {
    batches_ = queue_.batches();
    for (PathOut &o : out_) o.guard_from = o.next();
  }
  bool exact = false;
  for (const SegmentRef &ref : segments_) exact |= !shared_->outbox.at(ref.ticket).loose();
  DataBody head;
  head.keep = keep;
  head.oldest = out.oldest();
  head.number = out.sent(now, sizeof head + used + kSealing + kIpUdp, exact, &segments_);
  std::memcpy(body_.data(), &head, sizeof head);
  if (keep) out.kept.keep(head.number, body_.data() + sizeof head, used, shared_->sizes.frames);
  if (out.parity.waiting()) {  // there is more to send: what was the end is not
    out.parity.drop();
    out.hold(out.parity.first(), out.parity.k(), 0);
    out.covered = out.parity.first();
  }
  if (!seal(path, body_.data(), sizeof head + used, now)) refuse("no room in a batch that had some");
  ++shared_->counts.data;
  if (const uint32_t parity = queue_.guard()) guard(parity, now);
  return true;
}

// When the last symbol of a block that leaves now must have been heard of.
double UdpPeer::heard_of(const PathOut &out, uint32_t m, double now) const {
  const Congestion &c = out.congestion();
  return now + m * static_cast<double>(shared_->sizes.body) / c.rate() + c.rtt() * 9 / 8 + 2e-3;
}

// Nothing is left to send: makes parity for what may still be lost and is waited for. What may be given up is
// not, but for the last of it, behind which there is nothing that would overtake it.
void UdpPeer::protect(size_t path, double now) {
  PathOut &out = out_[path];
  if (!lossy(path) || out.parity.waiting() || out.idle() || out.covered == out.next()) return;
  if (now - out.covered_at < kTailShare * out.congestion().rtt())
    return;  // few blocks of much, not many of little
  uint32_t first = out.tail(shared_->deadline > 0 ? kLooseTail : kKept);
  if (out.covered - first < 0x80000000u && out.covered - first <= out.next() - first) first = out.covered;
  if (out.next() - first > kKept) first = out.next() - kKept;
  uint32_t open = 0;
  for (uint32_t n = first; n != out.next(); ++n) open += out.open(n);
  const uint32_t k = out.next() - first;
  out.covered = out.next();
  if (open == 0) return;
  const uint32_t m = parity_for(k, open, std::min(loss(path), kMostLoss));
  if (!out.parity.make(first, k, m, out.kept)) return;
  out.covered_at = now;
  out.hold(first, k, heard_of(out, m, now));
}

// What was picked of a batch has been sent: parity for the packets since then, on each path its part.
void UdpPeer::guard(uint32_t parity, double now) {
  uint32_t packets = 0;
  for (const PathOut &out : out_) packets += out.next() - out.guard_from;
  for (size_t p = 0; p < out_.size(); ++p) {
    PathOut &out = out_[p];
    const uint32_t k = out.next() - out.guard_from;
    const uint32_t m = (parity * k + packets - 1) / packets;
    if (k == 0 || k > kKept || out.dead || !out.guard.make(out.guard_from, k, m, out.kept)) continue;
    out.hold(out.guard_from, k, heard_of(out, m, now));
    out.covered = out.next();
  }
}

// A batch is as long as the path takes for three quarters of the deadline, and does not wait for word of its
// own first packets: its last ones are in time then.
void UdpPeer::set_limits(double now) {
  SendQueue::Limits limits;
  limits.now = now;
  limits.lull = std::min(kCompany, shared_->deadline / 6);
  limits.patience = shared_->deadline / 4;
  limits.packet = shared_->sizes.frames;
  double rate = 0, burst = 0;
  for (size_t p = 0; p < out_.size(); ++p) {
    if (out_[p].dead) continue;
    burst += out_[p].burst();
    const Congestion &c = out_[p].congestion();
    rate += c.bandwidth() > 0 ? c.bandwidth() : c.rate();
    if (lossy(p)) limits.loss = std::max(limits.loss, std::min(loss(p), kMostLoss));
  }
  const double most = static_cast<double>(kGuardPackets * shared_->sizes.frames);
  limits.bytes = static_cast<size_t>(std::min({0.75 * shared_->deadline * rate, burst, most}));
  queue_.set(limits);
}

bool UdpPeer::send_parity(size_t path, ParityOut *parity, double now) {
  if (!parity->waiting() || !room(path)) return false;
  const size_t bytes = parity->next(body_.data());
  if (!seal(path, body_.data(), bytes, now)) return false;
  ++shared_->counts.parity;
  if (parity == &out_[path].guard) ++shared_->counts.guard;
  return true;
}

bool UdpPeer::send_acks(double now) {
  bool any = false;
  for (size_t p = 0; p < in_.size(); ++p) {
    if (!in_[p].owes(now) || !room(living(p))) continue;  // without room it stays owed
    const size_t bytes = in_[p].acknowledge(static_cast<int>(p), out_[p].congestion().loss(), now,
                                            body_.data(), shared_->sizes.body);
    any |= seal(living(p), body_.data(), bytes, now);
  }
  if (pong_ && room(pong_path_)) {
    pong_ = false;
    std::memcpy(body_.data(), &pong_body_, sizeof pong_body_);
    any |= seal(pong_path_, body_.data(), sizeof pong_body_, now);
  }
  return any;
}

// A path on which nothing was acknowledged for long is given up, as long as another one lives.
void UdpPeer::watch_paths(double now) {
  size_t alive = 0, answering = 0;
  for (const PathOut &out : out_) {
    alive += !out.dead;
    answering += !out.dead && !out.silent();
  }
  for (size_t p = 0; p < out_.size(); ++p) {
    PathOut &out = out_[p];
    if (out.idle() && !out.silent() && !out.dead) out.heard = now;
    const double silence = now - out.heard;
    const bool hopeless =
        silence > kDead || (answering > 0 && out.timeouts() >= kMostTimeouts && silence > kSilent);
    if (!out.dead && alive > 1 && hopeless) {
      out.dead = true;
      --alive;
      out.parity.drop();
      out.guard.drop();
      out.give_up(now, &shared_->outbox, &lost_);
      ++shared_->counts.dead_paths;
      out.asked = now;
    }
    if (out.dead && now - out.asked > kAskDead) {
      out.asked = now;
      PingBody ping;
      ping.path = static_cast<uint8_t>(p);
      ping.stamp = now;
      std::memcpy(body_.data(), &ping, sizeof ping);
      seal(p, body_.data(), sizeof ping, now);
    }
  }
}

bool UdpPeer::tick(double now) {
  bool moved = send_acks(now);
  lost_.clear();
  for (PathOut &out : out_) out.watch(now, &shared_->outbox, &lost_);
  if (out_.size() > 1) watch_paths(now);
  shared_->counts.lost += lost_.size();
  queue_.again(&lost_);
  if (shared_->deadline > 0) set_limits(now);
  // What a path did not answer for goes by another one, if there is one that answers.
  for (bool silent : {false, true}) {
    for (size_t p = 0; p < out_.size(); ++p) {
      PathOut &out = out_[p];
      if (out.silent() != silent) continue;
      while (out.may_send(now) && (send_parity(p, &out.guard, now) || send_data(p, now))) moved = true;
    }
  }
  for (size_t p = 0; p < out_.size(); ++p) {
    PathOut &out = out_[p];
    if (queue_.empty()) {
      if (quiet_since_ == 0) quiet_since_ = now;
      if (out.may_send(now)) out.congestion().limited();
      if (now - quiet_since_ >= std::clamp(out.congestion().rtt() / 16, kLull, kMostLull)) protect(p, now);
      while (out.may_send(now) && send_parity(p, &out.parity, now)) moved = true;
    } else {
      quiet_since_ = 0;
    }
  }
  return moved;
}

bool UdpPeer::busy() const {
  if (!queue_.empty() || pong_) return true;
  for (const PathOut &out : out_) {
    if (!out.idle() || out.parity.waiting() || out.guard.waiting()) return true;
  }
  for (const PathIn &in : in_) {
    if (in.owes_any()) return true;
  }
  return false;
}

void UdpPeer::farewell(double now) {
  for (size_t p = 0; p < in_.size(); ++p) {
    if (in_[p].largest() == 0) continue;
    for (int i = 0; i < 3; ++i) {
      const size_t bytes = in_[p].acknowledge(static_cast<int>(p), 0, now, body_.data(), shared_->sizes.body);
      seal(living(p), body_.data(), bytes, now);
    }
  }
}

}  // namespace gf
