// Messages of one peer on their way in: segments go straight to where the message is wanted.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "datagram.hpp"
#include "transport.hpp"

namespace gf {

class Inbox {
 public:
  Inbox(size_t segment, int source) : segment_(segment), source_(source) {}

  void post(int channel, uint8_t *buffer, size_t capacity) { posted_[channel].push_back({buffer, capacity}); }
  bool take(int channel, size_t *bytes, double patience, double now) {
    auto &messages = messages_[channel];
    if (messages.empty()) return false;
    if (messages.front().whole()) {
      *bytes = messages.front().total;
    } else if (patience > 0 && overtaken(messages, now - patience)) {
      *bytes = Transport::kMissing;
    } else {
      return false;
    }
    messages.pop_front();
    posted_[channel].pop_front();
    ++taken_[channel];
    return true;
  }
  bool take_control(std::vector<uint8_t> *message) {
    auto &messages = messages_[Transport::kControl];
    if (messages.empty() || !messages.front().whole()) return false;
    held_ -= messages.front().own.size();
    *message = std::move(messages.front().own);
    messages.pop_front();
    ++taken_[Transport::kControl];
    return true;
  }

  enum class Taken { kYes, kNotNow, kWrong };
  // Takes the frames of a packet that have a place; kYes if all have. One without must not hold up those that
  // share its packet, perhaps each time that it is sent. What is wrong can only come from a peer with the
  // key, and then nothing is taken: `why` says what.
  Taken accept(const uint8_t *frames, size_t bytes, double now, std::string *why) {
    Taken all = Taken::kYes;
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t at = 0; at + sizeof(Frame) <= bytes;) {
        const auto frame = read<Frame>(frames + at);
        if (frame.channel == 0) break;
        at += sizeof(Frame);
        const Taken taken = check(frame, bytes - at, why);
        if (taken == Taken::kWrong) return taken;
        if (taken == Taken::kNotNow) all = taken;
        if (taken == Taken::kYes && pass == 1) put(frame, frames + at, now);
        at += frame.bytes;
      }
    }
    return all;
  }

 private:
  struct Posted {
    uint8_t *buffer;
    size_t capacity;
  };
  struct Incoming {
    uint32_t total = 0, segments = 0, arrived = 0;
    double since = 0;  // when its last segment came
    std::vector<bool> there;
    std::vector<uint8_t> own;  // of a control message
    bool whole() const { return segments > 0 && arrived == segments; }
  };
  // Whether a message behind the first one has been whole since that time.
  static bool overtaken(const std::deque<Incoming> &messages, double time) {
    for (size_t i = 1; i < messages.size(); ++i) {
      if (messages[i].whole() && messages[i].since <= time) return true;
    }
    return false;
  }
  static constexpr uint32_t kMostControl = 4096;        // messages that wait for those before them
  static constexpr size_t kMostHeld = size_t{1} << 26;  // bytes of them

  Taken check(const Frame &frame, size_t left, std::string *why) const {
    const int channel = frame.channel;
    const size_t begin = static_cast<size_t>(frame.segment) * segment_;
    if (channel >= Transport::kChannels || frame.bytes > left || begin > frame.total ||
        frame.bytes != (frame.total - begin < segment_ ? frame.total - begin : segment_) ||
        (frame.bytes == 0 && frame.total != 0)) {
      *why = "a piece of a message from rank " + std::to_string(source_) + " that cannot be: channel " +
             std::to_string(channel) + ", " + std::to_string(frame.bytes) + " bytes, segment " +
             std::to_string(frame.segment) + " of " + std::to_string(frame.total) + " bytes";
      return Taken::kWrong;
    }
    const uint32_t ahead = frame.message - taken_[channel];
    if (ahead >= 0x80000000u) return Taken::kYes;  // taken long ago
    const auto &messages = messages_[channel];
    const Incoming *known = ahead < messages.size() && messages[ahead].segments ? &messages[ahead] : nullptr;
    if (channel == Transport::kControl) {
      if (frame.total > Transport::kLongestControl) {
        *why = "a control message of " + std::to_string(frame.total) + " bytes from rank " +
               std::to_string(source_);
        return Taken::kWrong;
      }
      // The first one always has room: those behind it wait for it.
      if (ahead >= kMostControl || (ahead > 0 && !known && held_ + frame.total > kMostHeld))
        return Taken::kNotNow;
    } else {
      if (ahead >= posted_[channel].size()) return Taken::kNotNow;
      if (frame.total > posted_[channel][ahead].capacity) {
        *why = "a message of " + std::to_string(frame.total) + " bytes from rank " + std::to_string(source_) +
               ", for which there are " + std::to_string(posted_[channel][ahead].capacity);
        return Taken::kWrong;
      }
    }
    if (known && known->total != frame.total) {
      *why = "two lengths of one message from rank " + std::to_string(source_);
      return Taken::kWrong;
    }
    return Taken::kYes;
  }

  void put(const Frame &frame, const uint8_t *data, double now) {
    const int channel = frame.channel;
    const uint32_t ahead = frame.message - taken_[channel];
    if (ahead >= 0x80000000u) return;
    auto &messages = messages_[channel];
    if (ahead >= messages.size()) messages.resize(ahead + 1);
    Incoming &m = messages[ahead];
    if (m.segments == 0) {
      m.total = frame.total;
      m.segments = static_cast<uint32_t>(frame.total == 0 ? 1 : (frame.total + segment_ - 1) / segment_);
      m.there.assign(m.segments, false);
      if (channel == Transport::kControl) {
        m.own.resize(frame.total);
        held_ += frame.total;
      }
    }
    if (m.there[frame.segment]) return;
    m.there[frame.segment] = true;
    ++m.arrived;
    m.since = now;
    uint8_t *to = channel == Transport::kControl ? m.own.data() : posted_[channel][ahead].buffer;
    if (frame.bytes) std::memcpy(to + static_cast<size_t>(frame.segment) * segment_, data, frame.bytes);
  }

  size_t segment_;
  int source_;
  std::deque<Posted> posted_[Transport::kChannels];
  std::deque<Incoming> messages_[Transport::kChannels];  // from the first that was not taken
  uint32_t taken_[Transport::kChannels] = {};
  size_t held_ = 0;
};

}  // namespace gf
