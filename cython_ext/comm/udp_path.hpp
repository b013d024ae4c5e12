// One way to one peer: what is under way on it, at which rate, and what has arrived by it.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "congestion.hpp"
#include "datagram.hpp"
#include "outbox.hpp"
#include "parity.hpp"

namespace gf {

// The sending half. Data packets are numbered; a number is open until the packet was acknowledged, or is
// taken for lost, and then its segments go into other packets.
class PathOut {
 public:
  PathOut(size_t packet, sockaddr_in to) : to_(to), congestion_(packet) {}

  bool may_send(double now) const;
  // Numbers a packet that leaves now; the caller says which segments are in it, and whether one must arrive.
  uint32_t sent(double now, size_t bytes, bool exact, std::vector<SegmentRef> *segments);
  void paced(double now, size_t bytes);  // anything that leaves takes its time of the path
  uint64_t next_counter() { return counter_++; }

  // What an acknowledgement says; segments of packets that are lost go to `lost`.
  bool acknowledged(const AckBody &ack, const uint8_t *bitmap, double now, Outbox *outbox,
                    std::vector<SegmentRef> *lost);
  // Time passes: packets that must be lost by now.
  void watch(double now, Outbox *outbox, std::vector<SegmentRef> *lost);
  // Gives up everything that is under way.
  void give_up(double now, Outbox *outbox, std::vector<SegmentRef> *lost);

  uint32_t next() const { return next_; }
  uint32_t oldest() const { return oldest_; }
  bool open(uint32_t number) const { return number - oldest_ < next_ - oldest_ && at(number).open; }
  // These are not lost before this time: parity for them is on its way.
  void hold(uint32_t first, uint32_t count, double until);
  bool idle() const { return open_ == 0; }
  // Whether the last that was sent on it was taken for lost for want of any answer.
  bool silent() const { return backoff_ > 0; }
  // How often in a row.
  int timeouts() const { return backoff_; }
  void revive(double now) {
    dead = false;
    heard = now;
    backoff_ = 0;
  }
  uint32_t first_open() const;  // or next()
  // The first from which on at most so many are open that need not arrive.
  uint32_t tail(uint32_t loose) const;
  double under_way() const { return under_way_; }
  // Bytes that can leave one after the other, but for a stream in which as much is always under way.
  double burst() const { return std::max(congestion_.window() - under_way_, congestion_.window() / 2); }
  Congestion &congestion() { return congestion_; }
  const Congestion &congestion() const { return congestion_; }
  const sockaddr_in &to() const { return to_; }
  uint32_t reorder() const { return reorder_; }

  bool dead = false;  // nothing came back for long, while another path lives
  double heard = 0;   // when something came last
  double asked = 0;   // when a dead path was last tried
  Kept kept;
  ParityOut parity;
  ParityOut guard;          // the same for what was picked of a batch; goes before all data
  uint32_t guard_from = 0;  // number of the first packet of the batch
  double told_loss = 0;     // of the other direction, as the peer measures it
  uint32_t covered = 0;     // packets below this one have had their parity
  double covered_at = 0;    // when the last block of a tail was made

 private:
  struct Sent {
    double time = 0, hold = 0, lost = 0;  // lost: when it was taken for lost, or 0
    uint32_t bytes = 0;
    bool open = false;
    bool exact = false;      // something in it must arrive
    bool overtaken = false;  // taken for lost because later ones had been acknowledged
    RateMark mark;
    std::vector<SegmentRef> segments;
  };
  Sent &at(uint32_t number) { return ring_[number % kNumbers]; }
  const Sent &at(uint32_t number) const { return ring_[number % kNumbers]; }
  void lose(Sent *sent, double now, Outbox *outbox, std::vector<SegmentRef> *lost);
  void advance(double now);
  double timeout() const;

  sockaddr_in to_;
  Congestion congestion_;
  std::vector<Sent> ring_;
  uint32_t next_ = 0, oldest_ = 0;
  uint32_t largest_ = 0;  // number + 1 of the latest acknowledged packet
  double largest_sent_ = 0;
  double under_way_ = 0;
  uint32_t open_ = 0;
  double next_time_ = 0;  // when the next packet may leave
  double last_progress_ = 0;
  int backoff_ = 0;
  uint64_t counter_ = 0;
  uint32_t reorder_ = 3;    // packets that may overtake one before it is lost
  uint32_t recovered_ = 0;  // of ours, as the peer counts
};

// The receiving half.
class PathIn {
 public:
  // Whether a packet's counter is new; to be asked before anything is done with the packet.
  bool fresh(uint64_t counter) const { return !replay_.seen(counter); }
  void count(uint64_t counter) { replay_.add(counter); }

  enum class Place { kNew, kOld, kFar };
  // Where a data packet stands that says what the oldest is.
  Place place(uint32_t number) const;
  void forget_below(uint32_t oldest);
  void arrived(uint32_t number, double now);
  bool there(uint32_t number) const;
  uint32_t base() const { return base_; }
  uint32_t largest() const { return largest_; }

  // Something came that is to be acknowledged, after `patience` seconds at most.
  void owe(double now, double patience);
  bool owes(double now) const { return owed_ > 0 && (owed_ >= kOften || now >= due_); }
  bool owes_any() const { return owed_ > 0; }
  void at_once(double now) { owed_ = owed_ > 0 ? owed_ : 1, due_ = now; }
  // Writes an acknowledgement of at most `room` bytes; returns its length.
  size_t acknowledge(int path, double loss, double now, uint8_t *out, size_t room);

  uint32_t recovered = 0;  // packets that were made from parity
  Kept kept;
  ParityIn parity;

 private:
  static constexpr int kOften = 8;  // packets to an acknowledgement, while they come quickly
  bool bit(uint32_t number) const { return bits_[number / 64 % bits_.size()] >> number % 64 & 1; }

  ReplayWindow replay_;
  uint32_t base_ = 0, largest_ = 0;
  double largest_time_ = 0;
  std::vector<uint64_t> bits_;  // of numbers from base_ on
  int owed_ = 0;
  double due_ = 0;
};

}  // namespace gf
