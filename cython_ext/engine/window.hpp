// Payloads between nodes: a credit window for each peer and direction (docs/architecture.md, "Window").
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "protocol.hpp"

namespace gf {

class Worker;

// Throws MpiError when a call of MPI did not return MPI_SUCCESS.
struct MpiError {
  std::string text;
};
void check_mpi(int code, const char *call);

// Counts, of bytes handed to MPI for ranks on other nodes; written by the engine's thread, read by any.
struct Traffic {
  std::atomic<uint64_t> wire{0};          // as sent, headers and control messages counted
  std::atomic<uint64_t> uncompressed{0};  // what the same messages would have been without a codec
  std::atomic<uint64_t> payloads{0};
  std::atomic<uint64_t> peak_under_way{0};  // most unacknowledged chunks to one peer
  std::atomic<uint64_t> units{0};           // ended well
  std::atomic<uint64_t> late{0};            // of them, those of which the second part was not sent
};

// For the longest message there can be; what most leave unused is never touched, and takes no memory.
using Buffer = std::unique_ptr<uint8_t[]>;

// A message being sent to one or several peers; reusable once every send has completed.
class SendSlot {
 public:
  bool free();
  uint8_t *payload() { return buffer_.get() + sizeof(DataHeader); }
  void reserve(size_t capacity) {
    if (!buffer_) buffer_ = Bytes(new uint8_t[capacity], [](uint8_t *p) { delete[] p; });
  }
  // In memory that a device copies to asynchronously; only while it is free.
  void reserve_pinned(size_t capacity, const Worker &worker);
  // Energies go after the payload; the header before it.
  size_t seal(uint64_t chunk, size_t payload_bytes, uint64_t first_bytes,
              const std::vector<Energy> &energies);
  void send(MPI_Comm comm, int peer, int tag, size_t bytes);

 private:
  using Bytes = std::unique_ptr<uint8_t, std::function<void(uint8_t *)>>;
  Bytes buffer_;
  bool pinned_ = false;
  std::vector<MPI_Request> requests_;
};

// A payload that has arrived and waits to be consumed.
struct Arrival {
  uint64_t chunk;
  const uint8_t *payload;
  size_t bytes;
  const uint8_t *energies;  // not aligned
  size_t energy_count;
  uint64_t first_bytes;
  Energy energy(size_t i) const {
    Energy e;
    __builtin_memcpy(&e, energies + i * sizeof(Energy), sizeof(Energy));
    return e;
  }
};

// One direction of the exchange with every peer.
class Window {
 public:
  // `credit(peer, count)` tells the peer how many chunks were consumed so far.
  using Credit = std::function<void(int peer, uint64_t count)>;

  void open(MPI_Comm comm, int tag, int width, size_t capacity, const std::vector<int> &peers, int world,
            Credit credit);
  void close(bool free);  // the buffers too, if nothing can arrive any more

  bool may_send(int peer) const;
  void sent(int peer, Traffic *traffic);
  void acknowledged(int peer, uint64_t count);

  // The oldest message of a peer, or false; stays until `consume`.
  bool front(int peer, Arrival *arrival);
  void consume(int peer);
  size_t capacity() const { return capacity_; }
  MPI_Comm comm() const { return comm_; }
  int tag() const { return tag_; }
  int width() const { return width_; }

 private:
  struct Peer {
    uint64_t sent = 0, acked = 0;
    uint64_t consumed = 0, credited = 0;
    bool arrived = false;
    int bytes = 0;
    std::vector<Buffer> buffers;
    std::vector<MPI_Request> receives;
  };
  void post(Peer *peer, int rank, size_t slot);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int tag_ = 0, width_ = 0;
  size_t capacity_ = 0;
  std::vector<Peer> peers_;  // by rank; those that are none of ours have no buffers
  Credit credit_;
};

}  // namespace gf
