// Messages by authenticated datagrams (docs/udp.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "udp_peer.hpp"

namespace gf {

class UdpTransport : public Transport {
 public:
  // `deadline`: seconds after which what may be given up is (Transport::take); 0: nothing ever is.
  UdpTransport(int rank, uint32_t session, size_t mtu, bool parity, double deadline = 0);

  // One more path, with a socket of its own; what went wrong, or nothing.
  std::string add_path(const std::string &address, int port);
  int port(size_t path) const { return shared_.sockets[path]->port(); }
  // A rank on another node: its address on each path, and the keys of both directions (32 bytes each, `count`
  // of them).
  std::string add_peer(int rank, const std::vector<std::string> &addresses, const std::vector<int> &ports,
                       const uint8_t *keys_out, const uint8_t *keys_in, size_t count);

  Ticket send(int peer, int channel, const uint8_t *data, size_t bytes, double weight = 0) override;
  bool done(Ticket ticket) override { return shared_.outbox.done(ticket); }
  void post(int peer, int channel, uint8_t *buffer, size_t capacity) override;
  bool take(int peer, int channel, size_t *bytes, double patience = 0) override;
  bool take_control(int *peer, std::vector<uint8_t> *message) override;
  bool progress() override;
  bool busy() const override;
  size_t piece() const override { return shared_.sizes.segment; }
  void close() override;

  const UdpCounts &counts() const { return shared_.counts; }
  // Of one path to a peer: round trip and its minimum (s), bandwidth (bytes/s), rate of loss, packets that
  // may overtake one before it is lost.
  struct PathState {
    double rtt, min_rtt, bandwidth, loss;
    uint32_t reorder;
    bool dead;
  };
  std::vector<PathState> paths(int peer) const;

 private:
  UdpPeer &peer(int rank);

  UdpShared shared_;
  std::map<int, std::unique_ptr<UdpPeer>> peers_;
  double now_ = 0;  // of the last progress
  bool closed_ = false;
};

}  // namespace gf
