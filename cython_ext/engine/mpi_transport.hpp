// Messages by MPI.
#pragma once

#include <mpi.h>

#include <deque>
#include <memory>
#include <vector>

#include "../comm/transport.hpp"

namespace gf {

// Throws TransportError when a call of MPI did not return MPI_SUCCESS.
void check_mpi(int code, const char *call);

class MpiTransport : public Transport {
 public:
  // On a communicator of its own, whose errors return.
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {}

  Ticket send(int peer, int channel, const uint8_t *data, size_t bytes, double = 0) override;
  bool done(Ticket ticket) override;
  void post(int peer, int channel, uint8_t *buffer, size_t capacity) override;
  bool take(int peer, int channel, size_t *bytes, double patience = 0) override;
  bool take_control(int *peer, std::vector<uint8_t> *message) override;
  bool progress() override;
  void close() override;

 private:
  std::deque<MPI_Request> &posted(int peer, int channel);
  struct Receive {
    int peer;
    std::vector<uint8_t> bytes;
    MPI_Request request;
  };
  MPI_Comm comm_;
  std::vector<MPI_Request> sends_;  // by ticket
  std::vector<Ticket> unused_;
  std::vector<std::deque<MPI_Request>> posted_;    // by peer and channel
  std::deque<std::unique_ptr<Receive>> receives_;  // of control messages
};

}  // namespace gf
