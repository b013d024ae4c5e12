// What waits to be sent to one peer, and in which order (docs/udp.md, "Order").
#pragma once

#include <deque>
#include <vector>

#include "datagram.hpp"
#include "guard.hpp"
#include "outbox.hpp"

namespace gf {

// Lost segments go first, then control messages, then a batch of messages that may be given up: what was
// picked of it, and then the rest. Between two batches goes what must arrive: so nothing is late only because
// something else was sent in the middle of its batch. On the channel of what may be given up it keeps its
// place behind that: whatever it overtook would be late for the receiver. Whoever sends asks `guard` after
// each packet: it says, once, that what was picked has been sent, and how many packets of parity are due for
// those since then.
class SendQueue {
 public:
  explicit SendQueue(Outbox *outbox) : outbox_(outbox) {}

  struct Limits {
    double loss = 0;   // of the way; 0: nothing is picked
    size_t bytes = 0;  // of a batch: what is sent last in it must still be in time
    size_t packet = 1;
    double now = 0;
    double lull = 0, patience = 0;  // seconds without more, and in all, that the next batch waits for it
  };
  void set(const Limits &limits);

  void add(Transport::Ticket ticket);
  void again(std::vector<SegmentRef> *lost);
  bool empty() const;

  // Writes the frames of a packet and says what is in it; returns how many bytes it wrote.
  size_t fill(uint8_t *frames, size_t room, std::vector<SegmentRef> *segments);
  // How many batches of which something was picked have begun to be sent.
  uint64_t batches() const { return batches_; }
  uint32_t guard();

 private:
  struct Next {  // a segment that could be sent
    SegmentRef ref;
    Outgoing *message;
    std::deque<SegmentRef> *from;  // its queue, or null where it is to be sent again
  };
  bool peek(Next *next);
  bool batch_is_due();
  void begin_batch();

  Outbox *outbox_;
  Limits limits_;
  std::deque<SegmentRef> again_;
  // Messages with segments that were never sent.
  std::deque<SegmentRef> control_, exact_, loose_, picked_, rest_;
  size_t loose_bytes_ = 0;
  double loose_since_ = 0, loose_last_ = 0;  // when the oldest and the latest of them came
  bool loose_anew_ = false;                  // some have come since the time was last told
  double credit_ = 0;                        // packets of parity that may be sent
  uint32_t parity_ = 0;
  bool began_ = false;  // something of what was picked was sent
  uint64_t batches_ = 0;
};

}  // namespace gf
