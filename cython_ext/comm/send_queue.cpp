#include "send_queue.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parity.hpp"

namespace gf {

namespace {
size_t bytes_of(const Outgoing &m) { return m.bytes + m.segments * sizeof(Frame); }
}  // namespace

// Whoever hands over messages does not tell the time, and may have stood idle since it was last told.
void SendQueue::set(const Limits &limits) {
  limits_ = limits;
  if (!loose_anew_) return;
  loose_anew_ = false;
  loose_last_ = limits_.now;
  if (loose_since_ < 0) loose_since_ = limits_.now;
}

void SendQueue::add(Transport::Ticket ticket) {
  const Outgoing &m = outbox_->at(ticket);
  const SegmentRef ref{ticket, m.generation, 0};
  if (m.channel == Transport::kControl) {
    control_.push_back(ref);
  } else if (m.loose() || (!loose_.empty() && outbox_->at(loose_.back().ticket).channel == m.channel)) {
    if (loose_.empty()) loose_since_ = -1;
    loose_anew_ = true;
    loose_bytes_ += bytes_of(m);
    loose_.push_back(ref);
  } else {
    exact_.push_back(ref);
  }
}

void SendQueue::again(std::vector<SegmentRef> *lost) {
  again_.insert(again_.end(), lost->begin(), lost->end());
  lost->clear();
}

bool SendQueue::empty() const {
  return again_.empty() && control_.empty() && exact_.empty() && loose_.empty() && picked_.empty() &&
         rest_.empty();
}

// The last one has left, and what is there makes a long one, or no more has come, or that took too long.
bool SendQueue::batch_is_due() {
  if (loose_.empty() || !control_.empty() || !exact_.empty() || !picked_.empty() || !rest_.empty() || parity_)
    return false;
  return loose_bytes_ >= limits_.bytes || limits_.now - loose_last_ >= limits_.lull ||
         limits_.now - loose_since_ >= limits_.patience;
}

// Takes messages off the queue of those that may be given up, and deals them out.
void SendQueue::begin_batch() {
  std::vector<Weighed> messages;
  size_t bytes = 0, loose = 0;
  for (const SegmentRef &ref : loose_) {
    const Outgoing &m = outbox_->at(ref.ticket);
    const size_t more = bytes_of(m);
    if (!messages.empty() && bytes + more > limits_.bytes) break;
    bytes += more;
    if (m.loose()) loose += more;
    messages.push_back({m.weight, more});
  }
  const auto packets = static_cast<uint32_t>((loose + limits_.packet - 1) / limits_.packet);
  GuardPlan plan;
  if (limits_.loss > 0) {
    credit_ = std::min(credit_ + kGuardShare * packets, kGuardShare * kGuardPackets);
    const uint32_t enough = parity_for(packets, packets, limits_.loss);
    plan =
        plan_guard(messages, limits_.packet, std::min(static_cast<uint32_t>(credit_), enough), limits_.loss);
    credit_ -= plan.parity;
  }
  parity_ = plan.parity;
  for (size_t i = 0; i < messages.size(); ++i) {
    (parity_ && plan.guarded[i] ? picked_ : rest_).push_back(loose_.front());
    loose_.pop_front();
  }
  loose_bytes_ -= bytes;
  loose_since_ = limits_.now;
}

bool SendQueue::peek(Next *next) {
  for (; !again_.empty(); again_.pop_front()) {
    if (Outgoing *m = outbox_->find(again_.front())) {
      *next = {again_.front(), m, nullptr};
      return true;
    }
  }
  if (batch_is_due()) begin_batch();
  for (auto *queue : {&control_, &picked_, &rest_, &exact_}) {
    if (queue->empty()) continue;
    SegmentRef ref = queue->front();
    Outgoing &m = outbox_->at(ref.ticket);
    ref.segment = m.next;
    *next = {ref, &m, queue};
    return true;
  }
  return false;
}

size_t SendQueue::fill(uint8_t *frames, size_t room, std::vector<SegmentRef> *segments) {
  size_t used = 0;
  Next next;
  while (peek(&next)) {
    Outgoing &m = *next.message;
    const size_t bytes = outbox_->segment_bytes(m, next.ref.segment);
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
                  m.data + static_cast<size_t>(next.ref.segment) * outbox_->segment(), bytes);
    }
    used += sizeof frame + bytes;
    segments->push_back(next.ref);
    if (next.from == &picked_ && !began_) {
      began_ = true;
      ++batches_;
    }
    if (!next.from) {
      again_.pop_front();
    } else if (++m.next == m.segments) {
      next.from->pop_front();
    }
  }
  return used;
}

uint32_t SendQueue::guard() {
  if (!began_ || !picked_.empty()) return 0;
  began_ = false;
  return std::exchange(parity_, 0);
}

}  // namespace gf
