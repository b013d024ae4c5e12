// Control messages: small, never waited for, in order between two ranks.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "topology.hpp"
#include "window.hpp"

namespace gf {

// Who carries messages to a rank: there may be one transport inside a node and another one between nodes.
struct Routes {
  Transport *inside = nullptr;
  Transport *between = nullptr;  // may be the same
  const Topology *topology = nullptr;
  bool leaves_node(int peer) const { return topology->node_of[peer] != topology->node; }
  Transport *to(int peer) const { return leaves_node(peer) ? between : inside; }
};

class Control {
 public:
  using Handler =
      std::function<void(int source, const ControlHeader &header, const uint8_t *body, size_t bytes)>;

  void open(const Routes &routes, Traffic *traffic, Handler handler);
  void send(int peer, Message kind, uint32_t a, uint64_t b, const std::vector<uint8_t> &body = {});
  void send_to_others(Message kind, uint32_t a, uint64_t b, const std::vector<uint8_t> &body = {});
  // Takes in what has arrived and completes what was sent; true if anything happened.
  bool progress();
  bool sending() const { return !sends_.empty(); }
  // When something was last heard from a rank.
  double heard(int rank) const { return heard_[rank]; }
  void forgive(double seconds);  // this process itself stood still so long
  void close();

 private:
  struct Sent {
    Transport *by;
    Transport::Ticket ticket;
    std::vector<uint8_t> bytes;
  };
  bool receive(Transport *transport);

  Routes routes_;
  Traffic *traffic_ = nullptr;
  Handler handler_;
  std::deque<std::unique_ptr<Sent>> sends_;
  std::vector<double> heard_;
};

}  // namespace gf
