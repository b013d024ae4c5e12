// What is in a datagram (docs/udp.md, "Datagrams"): where things lie, and nothing of when they are sent.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "aead.hpp"

namespace gf {

// Sent in the clear, and authenticated.
struct PacketHeader {
  uint8_t magic = kMagic;
  uint8_t version_path = 0;  // version in the upper four bits
  uint16_t source = 0;       // rank
  uint32_t session = 0;      // says which keys; the keys say whether it is true
  uint64_t counter = 0;      // of this direction and path: the nonce with the path's number, and never again
  static constexpr uint8_t kMagic = 0x47, kVersion = 1;
  int path() const { return version_path & 15; }
  int version() const { return version_path >> 4; }
};
static_assert(sizeof(PacketHeader) == 16, "as documented");

enum class Kind : uint8_t { kData = 1, kParity = 2, kAck = 3, kPing = 4, kPong = 5 };

struct DataBody {
  Kind kind = Kind::kData;
  uint8_t keep = 0;  // 1: parity may follow, so the receiver keeps what comes after this header
  uint16_t reserved = 0;
  uint32_t number = 0;  // of the data packets of this direction and path, in order
  uint32_t oldest = 0;  // no packet below this one matters any more
};
// In a data packet, each followed by its bytes; one of channel 0 ends them.
struct Frame {
  uint8_t channel = 0;
  uint8_t reserved = 0;
  uint16_t bytes = 0;
  uint32_t message = 0;  // its number on this channel
  uint32_t segment = 0;  // which piece of it; all but the last have the same length
  uint32_t total = 0;    // bytes of the whole message
};
// Followed by one symbol.
struct ParityBody {
  Kind kind = Kind::kParity;
  uint8_t n1 = 0;
  uint16_t symbol = 0;  // which of the m
  uint32_t first = 0;   // number of the first of k data packets
  uint16_t k = 0, m = 0;
};
// Followed by a bit for each data packet from `base`.
struct AckBody {
  Kind kind = Kind::kAck;
  uint8_t path = 0;        // whose data packets; an acknowledgement may travel on another one
  uint16_t bitmap = 0;     // bytes of it
  uint32_t base = 0;       // all below have arrived, or no longer matter
  uint32_t largest = 0;    // number + 1 of the latest that arrived
  uint32_t delay = 0;      // microseconds from its arrival
  uint32_t recovered = 0;  // packets so far that were lost, and made from parity
  uint32_t loss = 0;       // packets in a million that are lost in the other direction
};
struct PingBody {
  Kind kind = Kind::kPing;
  uint8_t path = 0;
  uint16_t reserved = 0;
  uint32_t reserved2 = 0;
  double stamp = 0;  // comes back in a pong
};
static_assert(sizeof(DataBody) == 12 && sizeof(Frame) == 16 && sizeof(ParityBody) == 12, "as documented");
static_assert(sizeof(AckBody) == 24 && sizeof(PingBody) == 16, "as documented");

constexpr size_t kSealing = sizeof(PacketHeader) + Aead::kTag;
constexpr size_t kIpUdp = 28;         // of IPv4 and UDP
constexpr uint32_t kNumbers = 8192;   // data packets of one path under way at most
constexpr uint32_t kKept = 512;       // of them, the last ones that a receiver keeps for parity
constexpr size_t kMostBitmap = 1024;  // bytes

// What follows from the largest IP packet.
struct Sizes {
  size_t body = 0;     // of a packet
  size_t frames = 0;   // of a data packet: a symbol
  size_t segment = 0;  // bytes of a message in one packet
  explicit Sizes(size_t mtu)
      : body(mtu - kIpUdp - kSealing), frames(body - sizeof(DataBody)), segment(frames - sizeof(Frame)) {}
};

inline void nonce_of(const PacketHeader &header, uint8_t *nonce) {
  const uint32_t path = static_cast<uint32_t>(header.path());
  std::memcpy(nonce, &path, 4);
  std::memcpy(nonce + 4, &header.counter, 8);
}

template <class T>
T read(const uint8_t *at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Which counters have been seen (RFC 6479's way): the last kSpan of them, each once.
class ReplayWindow {
 public:
  static constexpr uint64_t kSpan = 8192;
  bool seen(uint64_t counter) const {
    if (counter >= next_) return false;
    return counter + kSpan < next_ || bit(counter);
  }
  void add(uint64_t counter) {
    if (bits_.empty()) bits_.assign(kSpan / 64 + 1, 0);
    if (counter >= next_) {
      const uint64_t first = next_ / 64 + (next_ % 64 != 0), last = counter / 64;
      if (last - next_ / 64 > bits_.size()) {
        bits_.assign(bits_.size(), 0);
      } else {
        for (uint64_t word = first; word <= last; ++word) bits_[word % bits_.size()] = 0;
      }
      next_ = counter + 1;
    }
    bits_[counter / 64 % bits_.size()] |= uint64_t{1} << counter % 64;
  }

 private:
  bool bit(uint64_t counter) const { return bits_[counter / 64 % bits_.size()] >> counter % 64 & 1; }
  uint64_t next_ = 0;
  std::vector<uint64_t> bits_;
};

}  // namespace gf
