// What comes from a peer: nothing of it is believed before it is authenticated.
#include <algorithm>

#include "udp_peer.hpp"

namespace gf {

namespace {
constexpr double kPatience = 1e-3;  // seconds that an acknowledgement waits for company, at most
constexpr double kLeastPatience = 1e-4;
}  // namespace

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
  if (in.parity.covers(head.number)) solve(path, now);
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
        in.kept.keep(number, frames, bytes, shared_->sizes.frames);
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
  queue_.again(&lost_);
}

}  // namespace gf
