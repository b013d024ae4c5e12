// All that goes between this rank and one other: messages, split over the paths, and what comes back.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "inbox.hpp"
#include "outbox.hpp"
#include "send_queue.hpp"
#include "udp_path.hpp"
#include "udp_socket.hpp"

namespace gf {

// Written by the transport's thread, read by any.
struct UdpCounts {
  std::atomic<uint64_t> datagrams{0}, bytes{0};   // sent, all headers counted
  std::atomic<uint64_t> data{0}, lost{0};         // data packets sent; taken for lost
  std::atomic<uint64_t> parity{0}, recovered{0};  // parity packets sent; packets made from what came of them
  std::atomic<uint64_t> guard{0};  // of the parity: for what was picked of that which may be given up
  std::atomic<uint64_t> forged{0}, replayed{0}, malformed{0};  // datagrams that were dropped
  std::atomic<uint64_t> dead_paths{0};                         // times that a path was given up
};

// What a peer needs of the transport.
struct UdpShared {
  int rank = 0;
  uint32_t session = 0;
  Sizes sizes;
  Outbox outbox;
  std::vector<std::unique_ptr<UdpSocket>> sockets;  // by path
  UdpCounts counts;
  DatagramCounts sent;
  bool parity = true;
  double deadline = 0;  // seconds
  explicit UdpShared(size_t mtu) : sizes(mtu), outbox(sizes.segment) {}
};

class UdpPeer {
 public:
  UdpPeer(UdpShared *shared, int rank, const std::vector<sockaddr_in> &paths);
  // False where the library refuses the keys.
  bool open(const uint8_t *keys_out, const uint8_t *keys_in, size_t count);

  Transport::Ticket send(int channel, const uint8_t *data, size_t bytes, double weight);
  Inbox &inbox() { return inbox_; }

  // A datagram that says it is of this peer; nothing of it is believed before it is authenticated. Throws
  // TransportError where the peer, with its key, says what cannot be.
  void receive(const PacketHeader &header, const uint8_t *data, size_t bytes, double now);
  // Sends what may be sent now; true if anything was.
  bool tick(double now);
  bool busy() const;
  void farewell(double now);  // a last acknowledgement, since none can be asked for any more

  const std::vector<PathOut> &paths() const { return out_; }

 private:
  bool send_data(size_t path, double now);
  bool send_parity(size_t path, ParityOut *parity, double now);
  void protect(size_t path, double now);
  void guard(uint32_t parity, double now);
  void set_limits(double now);
  double heard_of(const PathOut &out, uint32_t m, double now) const;
  bool room(size_t path);  // for one more datagram, if need be once the batch has left
  bool seal(size_t path, const uint8_t *body, size_t bytes, double now);
  bool send_acks(double now);
  void watch_paths(double now);
  void take_data(size_t path, const uint8_t *body, size_t bytes, double now);
  void take_parity(size_t path, const uint8_t *body, size_t bytes, double now);
  void take_ack(const uint8_t *body, size_t bytes, double now);
  void solve(size_t path, double now);
  [[noreturn]] void refuse(const std::string &what) const;
  double loss(size_t path) const;
  bool lossy(size_t path) const;
  size_t living(size_t preferred) const;

  UdpShared *shared_;
  int rank_;
  KeyRing seal_, open_;
  Inbox inbox_;
  std::vector<PathOut> out_;
  std::vector<PathIn> in_;
  SendQueue queue_;
  uint64_t batches_ = 0;  // that the paths know of
  std::vector<SegmentRef> lost_, segments_;
  std::vector<uint8_t> body_, plain_;
  uint32_t numbers_[Transport::kChannels] = {};
  double quiet_since_ = 0;  // since when nothing has waited to be sent
  bool pong_ = false;
  PingBody pong_body_;
  size_t pong_path_ = 0;
};

}  // namespace gf
