// Messages on their way to the peers, in segments, until each segment has been acknowledged.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport.hpp"

namespace gf {

// One segment of one message; means nothing any more once the message has ended.
struct SegmentRef {
  Transport::Ticket ticket;
  uint32_t generation;
  uint32_t segment;
};

struct Outgoing {
  uint32_t generation = 0;
  bool used = false;
  uint8_t channel = 0;
  uint32_t number = 0;  // on its channel
  const uint8_t *data = nullptr;
  uint32_t bytes = 0, segments = 0;
  uint32_t next = 0;  // never sent: this one and those behind it
  uint32_t acknowledged = 0;
  double weight = 0;  // where it may be given up: what that would lose
  std::vector<bool> arrived;
  bool loose() const { return weight > 0; }
  bool ended() const { return acknowledged == segments; }
};

class Outbox {
 public:
  explicit Outbox(size_t segment) : segment_(segment) {}

  Transport::Ticket add(uint8_t channel, uint32_t number, const uint8_t *data, size_t bytes,
                        double weight = 0) {
    Transport::Ticket ticket;
    if (unused_.empty()) {
      ticket = static_cast<Transport::Ticket>(messages_.size());
      messages_.emplace_back();
    } else {
      ticket = unused_.back();
      unused_.pop_back();
    }
    Outgoing &m = messages_[ticket];
    m.used = true;
    m.channel = channel;
    m.number = number;
    m.data = data;
    m.weight = weight;
    m.bytes = static_cast<uint32_t>(bytes);
    m.segments = static_cast<uint32_t>(bytes == 0 ? 1 : (bytes + segment_ - 1) / segment_);
    m.next = m.acknowledged = 0;
    m.arrived.assign(m.segments, false);
    return ticket;
  }

  // Whether a message has ended; then its ticket is free for another one.
  bool done(Transport::Ticket ticket) {
    Outgoing &m = messages_[ticket];
    if (!m.ended()) return false;
    m.used = false;
    m.data = nullptr;
    ++m.generation;
    unused_.push_back(ticket);
    return true;
  }

  Outgoing &at(Transport::Ticket ticket) { return messages_[ticket]; }
  // The message of a segment that still matters, or null.
  Outgoing *find(const SegmentRef &ref) {
    Outgoing &m = messages_[ref.ticket];
    return m.used && m.generation == ref.generation && !m.arrived[ref.segment] ? &m : nullptr;
  }
  void acknowledge(const SegmentRef &ref) {
    if (Outgoing *m = find(ref)) {
      m->arrived[ref.segment] = true;
      ++m->acknowledged;
    }
  }
  size_t segment_bytes(const Outgoing &m, uint32_t segment) const {
    const size_t begin = static_cast<size_t>(segment) * segment_;
    return m.bytes - begin < segment_ ? m.bytes - begin : segment_;
  }
  size_t segment() const { return segment_; }

 private:
  size_t segment_;
  std::deque<Outgoing> messages_;  // by ticket; references stay good
  std::vector<Transport::Ticket> unused_;
};

}  // namespace gf
