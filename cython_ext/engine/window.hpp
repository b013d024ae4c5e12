// Payloads between nodes: a credit window for each peer and direction (docs/architecture.md, "Window").
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "../comm/transport.hpp"
#include "protocol.hpp"

namespace gf {

class Worker;

// Counts, of bytes handed to MPI (or to another transport) for ranks on other nodes; written by the engine's
// thread, read by any.
struct Traffic {
  std::atomic<uint64_t> wire{0};          // as sent, headers and control messages counted
  std::atomic<uint64_t> uncompressed{0};  // what the same messages would have been without a codec
  std::atomic<uint64_t> payloads{0};
  std::atomic<uint64_t> peak_under_way{0};  // most unacknowledged chunks to one peer
  std::atomic<uint64_t> units{0};           // ended well
  std::atomic<uint64_t> late{0};            // of them, those of which the second part was not sent
  std::atomic<uint64_t> missed{0};          // payloads of others that did not come in time
  // Of this rank's payloads that may miss their results: by how much less was owed (sum of squares) because
  // they were sent, and the part of that in those that were missed.
  std::atomic<double> loose_energy{0}, missed_energy{0};
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
  size_t seal(uint64_t chunk, size_t payload_bytes, uint64_t first_bytes, uint64_t missing,
              const std::vector<Energy> &energies);
  void send(Transport *transport, int peer, int channel, size_t bytes, double weight);

 private:
  using Bytes = std::unique_ptr<uint8_t, std::function<void(uint8_t *)>>;
  Bytes buffer_;
  bool pinned_ = false;
  std::vector<std::pair<Transport *, Transport::Ticket>> under_way_;
};

// A payload that has arrived and waits to be consumed, or without one: it was given up.
struct Arrival {
  uint64_t chunk;
  const uint8_t *payload;
  size_t bytes;
  const uint8_t *energies;  // not aligned
  size_t energy_count;
  uint64_t first_bytes;
  uint64_t missing = 0;
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

  void open(Transport *transport, int channel, int width, size_t capacity, const std::vector<int> &peers,
            int world, Credit credit);
  void close();  // lets go of the buffers; only when nothing can arrive any more

  bool may_send(int peer) const;
  void sent(int peer, Traffic *traffic);
  void acknowledged(int peer, uint64_t count);

  // The oldest message of a peer, or false; stays until `consume`. With a patience it may be given up.
  bool front(int peer, Arrival *arrival, double patience = 0);
  void consume(int peer);
  size_t capacity() const { return capacity_; }
  Transport *transport() const { return transport_; }
  int channel() const { return channel_; }
  int width() const { return width_; }

 private:
  struct Peer {
    uint64_t sent = 0, acked = 0;
    uint64_t consumed = 0, credited = 0;
    bool arrived = false;
    size_t bytes = 0;
    std::vector<Buffer> buffers;
  };
  void post(Peer *peer, int rank, size_t slot);

  Transport *transport_ = nullptr;
  int channel_ = 0, width_ = 0;
  size_t capacity_ = 0;
  std::vector<Peer> peers_;  // by rank; those that are none of ours have no buffers
  Credit credit_;
};

}  // namespace gf
