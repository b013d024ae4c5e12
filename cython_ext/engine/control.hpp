// Control messages: small, never waited for, in order between two ranks.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "topology.hpp"
#include "window.hpp"

namespace gf {

class Control {
 public:
  using Handler =
      std::function<void(int source, const ControlHeader &header, const uint8_t *body, size_t bytes)>;

  void open(MPI_Comm comm, const Topology *topology, Traffic *traffic, Handler handler);
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
  struct Message_ {
    int peer;
    std::vector<uint8_t> bytes;
    MPI_Request request;
  };
  MPI_Comm comm_ = MPI_COMM_NULL;
  const Topology *topology_ = nullptr;
  Traffic *traffic_ = nullptr;
  Handler handler_;
  std::deque<std::unique_ptr<Message_>> sends_, receives_;
  std::vector<double> heard_;
};

}  // namespace gf
