#include "udp_peer.hpp"

#include <algorithm>

namespace gf {

namespace {
constexpr double kLossy = 0.002;    // a rate of loss from which parity is sent
constexpr double kLull = 0.2e-3;    // seconds without anything to send, before the end is protected
constexpr double kPatience = 1e-3;  // seconds that an acknowledgement waits for company, at most
constexpr double kLeastPatience = 1e-4;
constexpr double kDead = 2.0;     // seconds without an acknowledgement after which a path is given up
constexpr int kMostTimeouts = 3;  // in a row, after which it is sooner, if another one answers
constexpr double kSilent = 0.25;  // seconds; a host that stands still for less has not lost a path
constexpr double kAskDead = 1.0;  // seconds between two questions whether it lives again
}  // namespace

UdpPeer::UdpPeer(UdpShared *shared, int rank, const std::vector<sockaddr_in> &paths)
    : shared_(shared), rank_(rank), inbox_(shared->sizes.segment, rank) {
  for (const sockaddr_in &to : paths) out_.emplace_back(shared->sizes.body + kSealing + kIpUdp, to);
  in_.resize(paths.size());
  body_.resize(shared->sizes.body);
  plain_.resize(shared->sizes.body + Aead::kTag);
}

bool UdpPeer::open(const uint8_t *keys_out, const uint8_t *keys_in, size_t count) {
  return seal_.open(keys_out, count, true) && open_.open(keys_in, count, false);
}

Transport::Ticket UdpPeer::send(int channel, const uint8_t *data, size_t bytes) {
  const Transport::Ticket ticket =
      shared_->outbox.add(static_cast<uint8_t>(channel), numbers_[channel]++, data, bytes);
  auto &queue = channel == Transport::kControl ? control_ : bulk_;
  queue.push_back({ticket, shared_->outbox.at(ticket).generation, 0});
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

// What is lost goes first, then control messages, then payloads in the order in which they were handed over.
bool UdpPeer::peek(Next *next) {
  for (; !again_.empty(); again_.pop_front()) {
    if (Outgoing *m = shared_->outbox.find(again_.front())) {
      *next = {again_.front(), m, nullptr};
      return true;
    }
  }
  for (auto *queue : {&control_, &bulk_}) {
    if (queue->empty()) continue;
    SegmentRef ref = queue->front();
    Outgoing &m = shared_->outbox.at(ref.ticket);
    ref.segment = m.next;
    *next = {ref, &m, queue};
    return true;
  }
  return false;
}

size_t UdpPeer::fill(uint8_t *frames, size_t room, std::vector<SegmentRef> *segments) {
  size_t used = 0;
  Next next;
  while (peek(&next)) {
    Outgoing &m = *next.message;
    const size_t bytes = shared_->outbox.segment_bytes(m, next.ref.segment);
    if (used + sizeof(Frame) + bytes > room) break;
    Frame frame;
    frame.channel = m.channel;
    frame.bytes = static_cast<uint16_t>(bytes);
    frame.message = m.number;
    frame.segment = next.ref.segment;
    frame.total = m.bytes;
    std::memcpy(frames + used, &frame, sizeof frame);
    if (bytes) {
      std::memcpy(frames + used + sizeof frame,
                  m.data + static_cast<size_t>(next.ref.segment) * shared_->outbox.segment(), bytes);
    }
    used += sizeof frame + bytes;
    segments->push_back(next.ref);
    if (!next.from) {
      again_.pop_front();
    } else if (++m.next == m.segments) {
      next.from->pop_front();
    }
  }
  return used;
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
  const size_t used = fill(body_.data() + sizeof(DataBody), shared_->sizes.frames, &segments_);
  if (segments_.empty()) return false;
  DataBody head;
  head.keep = keep;
  head.oldest = out.oldest();
  head.number = out.sent(now, sizeof head + used + kSealing + kIpUdp, &segments_);
  std::memcpy(body_.data(), &head, sizeof head);
  if (keep) out.kept.keep(head.number, body_.data() + sizeof head, used, shared_->sizes.frames);
  if (out.parity.waiting()) {  // there is more to send: what was the end is not
    out.parity.drop();
    out.hold(out.parity.first(), out.parity.k(), 0);
    out.covered = out.parity.first();
  }
  if (!seal(path, body_.data(), sizeof head + used, now)) refuse("no room in a batch that had some");
  ++shared_->counts.data;
  return true;
}

// Nothing is left to send: makes parity for what may still be lost.
void UdpPeer::protect(size_t path, double now) {
  PathOut &out = out_[path];
  if (!lossy(path) || out.parity.waiting() || out.idle() || out.covered == out.next()) return;
  uint32_t first = out.first_open();
  if (out.covered - first < 0x80000000u && out.covered - first <= out.next() - first) first = out.covered;
  if (out.next() - first > kKept) first = out.next() - kKept;
  const uint32_t k = out.next() - first;
  out.covered = out.next();
  uint32_t open = 0;
  for (uint32_t n = first; n != first + k; ++n) open += out.open(n);
  const Congestion &c = out.congestion();
  const uint32_t m = parity_for(k, open, std::min(loss(path), 0.3));
  if (!out.parity.make(first, k, m, out.kept)) return;
  const double leaves = m * static_cast<double>(shared_->sizes.body) / c.rate();
  out.hold(first, k, now + leaves + c.rtt() * 9 / 8 + 2e-3);
}

bool UdpPeer::send_parity(size_t path, double now) {
  PathOut &out = out_[path];
  if (!out.parity.waiting() || !shared_->sockets[path]->room()) return false;
  const size_t bytes = out.parity.next(body_.data());
  if (!seal(path, body_.data(), bytes, now)) return false;
  ++shared_->counts.parity;
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
  again_.insert(again_.end(), lost_.begin(), lost_.end());
  lost_.clear();
  // What a path did not answer for goes by another one, if there is one that answers.
  for (bool silent : {false, true}) {
    for (size_t p = 0; p < out_.size(); ++p) {
      while (out_[p].silent() == silent && out_[p].may_send(now) && send_data(p, now)) moved = true;
    }
  }
  for (size_t p = 0; p < out_.size(); ++p) {
    PathOut &out = out_[p];
    if (again_.empty() && control_.empty() && bulk_.empty()) {
      if (quiet_since_ == 0) quiet_since_ = now;
      if (out.may_send(now)) out.congestion().limited();
      if (now - quiet_since_ >= kLull) protect(p, now);
      while (out.may_send(now) && send_parity(p, now)) moved = true;
    } else {
      quiet_since_ = 0;
    }
  }
  return moved;
}

bool UdpPeer::busy() const {
  if (!again_.empty() || !control_.empty() || !bulk_.empty() || pong_) return true;
  for (const PathOut &out : out_) {
    if (!out.idle() || out.parity.waiting()) return true;
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

void UdpPeer::receive(const PacketHeader &header, const uint8_t *data, size_t bytes, double now) {
  const auto path = static_cast<size_t>(header.path());
  if (path >= in_.size() || bytes < kSealing + 8 || bytes > shared_->sizes.body + kSealing) {
    ++shared_->counts.malformed;
    return;
  }
  PathIn &in = in_[path];
  if (!in.fresh(header.counter)) {
    ++shared_->counts.replayed;
    return;
  }
  uint8_t nonce[Aead::kNonce];
  nonce_of(header, nonce);
  const size_t body = bytes - kSealing;
  Aead *key = open_.at(header.counter);
  if (!key || !key->open(nonce, data, sizeof header, data + sizeof header, body, plain_.data())) {
    ++shared_->counts.forged;
    return;
  }
  in.count(header.counter);
  switch (static_cast<Kind>(plain_[0])) {
    case Kind::kData:
      return take_data(path, plain_.data(), body, now);
    case Kind::kParity:
      return take_parity(path, plain_.data(), body, now);
    case Kind::kAck:
      return take_ack(plain_.data(), body, now);
    case Kind::kPing:
    case Kind::kPong: {
      if (body != sizeof(PingBody)) refuse("a ping of " + std::to_string(body) + " bytes");
      auto ping = read<PingBody>(plain_.data());
      if (ping.path >= out_.size()) refuse("a ping of path " + std::to_string(ping.path));
      if (ping.kind == Kind::kPong) {
        out_[ping.path].revive(now);
      } else {
        ping.kind = Kind::kPong;
        pong_ = true;
        pong_body_ = ping;
        pong_path_ = path;
      }
      return;
    }
  }
  refuse("a packet of unknown kind " + std::to_string(plain_[0]) + " from rank " + std::to_string(rank_));
}

void UdpPeer::take_data(size_t path, const uint8_t *body, size_t bytes, double now) {
  if (bytes < sizeof(DataBody)) refuse("a data packet of " + std::to_string(bytes) + " bytes");
  const auto head = read<DataBody>(body);
  PathIn &in = in_[path];
  if (head.number - head.oldest >= kNumbers) refuse("a data packet whose number is out of all bounds");
  in.forget_below(head.oldest);
  const double rtt = out_[path].congestion().rtt();
  const double patience = rtt > 0 ? std::min(kPatience, std::max(kLeastPatience, rtt / 8)) : kPatience;
  switch (in.place(head.number)) {
    case PathIn::Place::kFar:
      return;
    case PathIn::Place::kOld:
      in.owe(now, patience);
      return;
    case PathIn::Place::kNew:
      break;
  }
  std::string why;
  const uint8_t *frames = body + sizeof head;
  switch (inbox_.accept(frames, bytes - sizeof head, now, &why)) {
    case Inbox::Taken::kWrong:
      refuse(why);
    case Inbox::Taken::kNotNow:
      return;
    case Inbox::Taken::kYes:
      break;
  }
  in.arrived(head.number, now);
  in.owe(now, patience);
  if (head.keep) in.kept.keep(head.number, frames, bytes - sizeof head, shared_->sizes.frames);
  if (!in.parity.empty()) solve(path, now);
}

void UdpPeer::take_parity(size_t path, const uint8_t *body, size_t bytes, double now) {
  if (bytes <= sizeof(ParityBody) || bytes > sizeof(ParityBody) + shared_->sizes.frames)
    refuse("parity of " + std::to_string(bytes) + " bytes");
  const auto head = read<ParityBody>(body);
  std::string why;
  if (!ParityIn::possible(head, &why)) refuse(why);
  PathIn &in = in_[path];
  if (head.first - in.base() >= 0x80000000u && head.first + head.k - in.base() >= 0x80000000u)
    return;  // past
  if (head.first + head.k - in.base() > 2 * kNumbers) return;
  in.parity.add(head, body + sizeof head, bytes - sizeof head);
  solve(path, now);
}

void UdpPeer::solve(size_t path, double now) {
  PathIn &in = in_[path];
  std::string why;
  in.parity.solve(
      in.kept, [&](uint32_t number) { return in.there(number); },
      [&](uint32_t number, const uint8_t *frames, size_t bytes) {
        if (in.place(number) != PathIn::Place::kNew) return;
        const Inbox::Taken taken = inbox_.accept(frames, bytes, now, &why);
        if (taken == Inbox::Taken::kWrong) refuse(why);
        if (taken == Inbox::Taken::kNotNow) return;
        in.arrived(number, now);
        ++in.recovered;
        ++shared_->counts.recovered;
        in.at_once(now);
      });
}

void UdpPeer::take_ack(const uint8_t *body, size_t bytes, double now) {
  if (bytes < sizeof(AckBody)) refuse("an acknowledgement of " + std::to_string(bytes) + " bytes");
  const auto ack = read<AckBody>(body);
  if (ack.bitmap != bytes - sizeof ack || ack.path >= out_.size())
    refuse("an acknowledgement that does not hold what it says");
  PathOut &out = out_[ack.path];
  out.told_loss = std::min(ack.loss * 1e-6, 1.0);
  if (out.acknowledged(ack, body + sizeof ack, now, &shared_->outbox, &lost_)) out.heard = now;
  shared_->counts.lost += lost_.size();
  again_.insert(again_.end(), lost_.begin(), lost_.end());
  lost_.clear();
}

}  // namespace gf
