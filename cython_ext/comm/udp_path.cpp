#include "udp_path.hpp"

#include <algorithm>

namespace gf {

namespace {
constexpr uint32_t kMostReorder = 1000;
constexpr double kTimeShare = 9.0 / 8;  // of a round trip, after which it is (6.1.2)
constexpr double kGranularity =
    1e-3;  // seconds by which clocks and the other side's patience blur a round trip
constexpr double kFirstTimeout = 0.2, kMostTimeout = 2.0;
constexpr double kBurst = 4e-3;       // seconds of sending that may be made up at once
constexpr double kMostAhead = 10e-3;  // seconds, or a round trip, that what has left may delay the next
constexpr uint32_t kProbes = 4;       // packets that are sent again when nothing was heard
}  // namespace

bool PathOut::may_send(double now) const {
  return !dead && now >= next_time_ && under_way_ < congestion_.window() && next_ - oldest_ < kNumbers - 1;
}

void PathOut::paced(double now, size_t bytes) {
  const double rate = congestion_.rate();
  next_time_ = std::max(next_time_, now - kBurst) + static_cast<double>(bytes) / rate;
  // Acknowledgements do not wait for their time: of a direction in which little is sent, and whose rate is
  // hardly known, they may take more than all of it.
  next_time_ = std::min(next_time_, now + std::max(congestion_.rtt(), kMostAhead));
}

uint32_t PathOut::sent(double now, size_t bytes, bool exact, std::vector<SegmentRef> *segments) {
  if (ring_.empty()) ring_.resize(kNumbers);
  if (idle()) last_progress_ = now;
  const uint32_t number = next_++;
  Sent &s = at(number);
  s.time = now;
  s.hold = s.lost = 0;
  s.bytes = static_cast<uint32_t>(bytes);
  s.open = true;
  s.exact = exact;
  s.overtaken = false;
  ++open_;
  s.mark = congestion_.mark(now, under_way_ == 0);
  s.segments.swap(*segments);
  under_way_ += static_cast<double>(bytes);
  return number;
}

void PathOut::lose(Sent *sent, double now, Outbox *outbox, std::vector<SegmentRef> *lost) {
  sent->open = false;
  sent->lost = now;
  --open_;
  under_way_ -= sent->bytes;
  for (const SegmentRef &ref : sent->segments) {
    if (outbox->find(ref)) lost->push_back(ref);
  }
}

// What was taken for lost stays known for a round trip: it may only have been overtaken.
void PathOut::advance(double now) {
  const double late = now - std::max(congestion_.rtt(), 2e-3);
  while (oldest_ != next_ && !at(oldest_).open && at(oldest_).lost <= late) ++oldest_;
}

uint32_t PathOut::first_open() const {
  uint32_t n = oldest_;
  while (n != next_ && !at(n).open) ++n;
  return n;
}

uint32_t PathOut::tail(uint32_t loose) const {
  uint32_t n = next_, first = next_;
  while (n != oldest_) {
    const Sent &s = at(--n);
    if (!s.open) continue;
    if (!s.exact && loose-- == 0) break;
    first = n;
  }
  return first;
}

bool PathOut::acknowledged(const AckBody &ack, const uint8_t *bitmap, double now, Outbox *outbox,
                           std::vector<SegmentRef> *lost) {
  // Nothing that was not sent; what was sent since is less than half of all numbers away.
  if (ack.largest - oldest_ > next_ - oldest_ && oldest_ - ack.largest > 2 * kNumbers) return false;
  if (next_ - ack.base > 2 * kNumbers) return false;
  const uint32_t end = ack.base + 8u * ack.bitmap;
  size_t fresh = 0, gone = 0, wrong = 0, made = 0;
  if (const uint32_t more = ack.recovered - recovered_; more > 0 && more < 0x80000000u) {
    made = more;
    recovered_ = ack.recovered;
  }
  double rtt = 0;
  auto arrived = [&](uint32_t n) {
    Sent &s = at(n);
    if (!s.open && s.lost > 0) {  // it was not lost: more patience, as RFC 9002, section 6.1.1 allows
      s.lost = 0;
      // Unless it came to life by parity, or nobody had answered: then it had not been overtaken.
      if (made == 0 && s.overtaken) reorder_ = std::min(std::max(reorder_, largest_ - n), kMostReorder);
      ++wrong;
      for (const SegmentRef &ref : s.segments) outbox->acknowledge(ref);
    }
    if (!s.open) return;
    s.open = false;
    --open_;
    under_way_ -= s.bytes;
    congestion_.delivered(s.mark, s.time, s.bytes, now);
    for (const SegmentRef &ref : s.segments) outbox->acknowledge(ref);
    ++fresh;
    if (n + 1 - largest_ < 0x80000000u) {
      largest_ = n + 1;
      largest_sent_ = s.time;
      if (n + 1 == ack.largest) rtt = std::max(now - s.time - ack.delay * 1e-6, 0.0);
    }
  };
  for (uint32_t n = oldest_; n != next_; ++n) {
    if (n - ack.base >= 0x80000000u) {
      arrived(n);
    } else if (n - ack.base < end - ack.base) {
      const uint32_t i = n - ack.base;
      if (bitmap[i / 8] >> i % 8 & 1) arrived(n);
    } else {
      break;
    }
  }
  if (fresh) {
    last_progress_ = now;
    backoff_ = 0;
    const double limit = kTimeShare * std::max(congestion_.rtt(), rtt) + kGranularity;
    for (uint32_t n = oldest_; n != next_ && n + 1 - largest_ >= 0x80000000u; ++n) {
      Sent &s = at(n);
      if (!s.open || now < s.hold) continue;
      if (largest_ - 1 - n >= reorder_ || largest_sent_ - s.time > limit) {
        s.overtaken = true;
        lose(&s, now, outbox, lost);
        ++gone;
      }
    }
    // What was made from parity was lost; where it had been taken for lost already it is counted.
    const size_t found = std::min(made, fresh + wrong);
    congestion_.lost(static_cast<double>(gone + found) - static_cast<double>(wrong), gone + fresh);
    congestion_.acknowledged(now, rtt, under_way_);
  }
  advance(now);
  return true;
}

double PathOut::timeout() const {
  if (congestion_.rtt() <= 0) return std::min(kFirstTimeout * (1 << std::min(backoff_, 4)), kMostTimeout);
  const double plain = congestion_.rtt() + std::max(4 * congestion_.deviation(), kGranularity) + 2e-3;
  return std::min(plain * (1 << std::min(backoff_, 8)), kMostTimeout);
}

void PathOut::watch(double now, Outbox *outbox, std::vector<SegmentRef> *lost) {
  advance(now);
  if (idle()) return;
  const uint32_t first = first_open();
  // Behind packets that were held for parity there may be none whose acknowledgement tells of their loss.
  if (at(first).hold > 0 && now >= at(first).hold && largest_ != 0) {
    size_t gone = 0;
    for (uint32_t n = first; n != next_; ++n) {
      Sent &s = at(n);
      if (!s.open || s.hold == 0 || now < s.hold) continue;
      if (largest_ - 1 - n < 0x80000000u && largest_ - 1 != n) {
        lose(&s, now, outbox, lost);
        ++gone;
      }
    }
    congestion_.lost(static_cast<double>(gone), gone);
    if (idle()) return;
  }
  if (now - std::max(last_progress_, at(first_open()).hold) < timeout()) return;
  ++backoff_;
  last_progress_ = now;
  uint32_t tried = 0;
  for (uint32_t n = oldest_; n != next_ && tried < kProbes; ++n) {
    if (!at(n).open) continue;
    lose(&at(n), now, outbox, lost);
    ++tried;
  }
  advance(now);
}

void PathOut::give_up(double now, Outbox *outbox, std::vector<SegmentRef> *lost) {
  for (uint32_t n = oldest_; n != next_; ++n) {
    if (at(n).open) lose(&at(n), now, outbox, lost);
  }
  advance(now);
}

void PathOut::hold(uint32_t first, uint32_t count, double until) {
  for (uint32_t n = first; n != first + count; ++n) {
    if (open(n)) at(n).hold = until;
  }
}

PathIn::Place PathIn::place(uint32_t number) const {
  const uint32_t ahead = number - base_;
  if (ahead >= 0x80000000u) return Place::kOld;
  if (ahead >= kNumbers) return Place::kFar;
  return !bits_.empty() && number - largest_ >= 0x80000000u && bit(number) ? Place::kOld : Place::kNew;
}

void PathIn::forget_below(uint32_t oldest) {
  if (oldest - base_ == 0 || oldest - base_ >= 0x80000000u) return;
  base_ = oldest;
  if (base_ - largest_ < 0x80000000u && base_ != largest_) {
    // Nothing above it has come: what lay between is not there, and will not be asked for.
    std::fill(bits_.begin(), bits_.end(), 0);
    largest_ = base_;
  }
  while (base_ != largest_ && !bits_.empty() && bit(base_)) ++base_;
}

void PathIn::arrived(uint32_t number, double now) {
  if (bits_.empty()) bits_.assign(2 * kNumbers / 64, 0);
  if (number - largest_ < 0x80000000u) {
    for (uint32_t n = largest_; n != number; ++n) bits_[n / 64 % bits_.size()] &= ~(uint64_t{1} << n % 64);
    largest_ = number + 1;
    largest_time_ = now;
  }
  bits_[number / 64 % bits_.size()] |= uint64_t{1} << number % 64;
  while (base_ != largest_ && bit(base_)) ++base_;
}

bool PathIn::there(uint32_t number) const {
  if (number - base_ >= 0x80000000u) return true;
  return number - largest_ >= 0x80000000u && bit(number);
}

void PathIn::owe(double now, double patience) {
  if (owed_++ == 0) due_ = now + patience;
}

size_t PathIn::acknowledge(int path, double loss, double now, uint8_t *out, size_t room) {
  AckBody ack;
  ack.path = static_cast<uint8_t>(path);
  ack.base = base_;
  ack.largest = largest_;
  ack.delay = static_cast<uint32_t>(std::min(now - largest_time_, 1000.0) * 1e6);
  ack.recovered = recovered;
  ack.loss = static_cast<uint32_t>(loss * 1e6);
  const size_t most = std::min(room - sizeof ack, kMostBitmap);
  ack.bitmap = static_cast<uint16_t>(std::min<size_t>((largest_ - base_ + 7) / 8, most));
  std::memcpy(out, &ack, sizeof ack);
  uint8_t *bitmap = out + sizeof ack;
  std::memset(bitmap, 0, ack.bitmap);
  for (uint32_t i = 0; i < 8u * ack.bitmap && base_ + i != largest_; ++i) {
    if (bit(base_ + i)) bitmap[i / 8] = static_cast<uint8_t>(bitmap[i / 8] | 1 << i % 8);
  }
  owed_ = 0;
  return sizeof ack + ack.bitmap;
}

}  // namespace gf
