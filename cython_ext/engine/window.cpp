#include "window.hpp"

#include <algorithm>
#include <cstring>

#include "worker.hpp"

namespace gf {

void check_mpi(int code, const char *call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw MpiError{std::string(call) + ": " + std::string(text, static_cast<size_t>(length))};
}

bool SendSlot::free() {
  if (requests_.empty()) return true;
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  if (done) requests_.clear();
  return done != 0;
}

void SendSlot::reserve_pinned(size_t capacity, const Worker &worker) {
  if (pinned_) return;
  const gf_gpu_api *gpu = worker.gpu();
  buffer_ = Bytes(worker.allocate_host(capacity), [gpu](uint8_t *p) { gpu->release_host(p); });
  pinned_ = true;
}

size_t SendSlot::seal(uint64_t chunk, size_t payload_bytes, uint64_t first_bytes,
                      const std::vector<Energy> &energies) {
  DataHeader header;
  header.chunk = chunk;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  header.statistics = static_cast<uint32_t>(energies.size());
  header.first_bytes = first_bytes;
  std::memcpy(buffer_.get(), &header, sizeof header);
  const size_t extra = energies.size() * sizeof(Energy);
  if (extra) std::memcpy(payload() + payload_bytes, energies.data(), extra);
  return sizeof header + payload_bytes + extra;
}

void SendSlot::send(MPI_Comm comm, int peer, int tag, size_t bytes) {
  MPI_Request request;
  check_mpi(MPI_Isend(buffer_.get(), static_cast<int>(bytes), MPI_BYTE, peer, tag, comm, &request),
            "MPI_Isend");
  requests_.push_back(request);
}

void Window::open(MPI_Comm comm, int tag, int width, size_t capacity, const std::vector<int> &peers,
                  int world, Credit credit) {
  comm_ = comm;
  tag_ = tag;
  width_ = width;
  capacity_ = capacity;
  credit_ = std::move(credit);
  peers_.resize(static_cast<size_t>(world));
  for (int rank : peers) {
    Peer &peer = peers_[rank];
    peer.buffers.resize(static_cast<size_t>(width));
    peer.receives.assign(static_cast<size_t>(width), MPI_REQUEST_NULL);
    for (size_t slot = 0; slot < peer.buffers.size(); ++slot) {
      peer.buffers[slot].reset(new uint8_t[capacity]);
      post(&peer, rank, slot);
    }
  }
}

void Window::post(Peer *peer, int rank, size_t slot) {
  check_mpi(MPI_Irecv(peer->buffers[slot].get(), static_cast<int>(capacity_), MPI_BYTE, rank, tag_, comm_,
                      &peer->receives[slot]),
            "MPI_Irecv");
}

// After a failure the peers may be gone: requests are cancelled, not waited for.
void Window::close(bool free) {
  for (Peer &peer : peers_) {
    for (MPI_Request &request : peer.receives) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    if (free) std::vector<Buffer>().swap(peer.buffers);
  }
}

bool Window::may_send(int rank) const {
  const Peer &peer = peers_[rank];
  return peer.sent - peer.acked < static_cast<uint64_t>(width_);
}

void Window::sent(int rank, Traffic *traffic) {
  Peer &peer = peers_[rank];
  ++peer.sent;
  traffic->peak_under_way = std::max(traffic->peak_under_way.load(), peer.sent - peer.acked);
}

void Window::acknowledged(int rank, uint64_t count) {
  peers_[rank].acked = std::max(peers_[rank].acked, count);
}

bool Window::front(int rank, Arrival *arrival) {
  Peer &peer = peers_[rank];
  const size_t slot = peer.consumed % static_cast<uint64_t>(width_);
  if (!peer.arrived) {
    int done = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&peer.receives[slot], &done, &status), "MPI_Test");
    if (!done) return false;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &peer.bytes), "MPI_Get_count");
    peer.arrived = true;
  }
  const auto &buffer = peer.buffers[slot];
  DataHeader header;
  std::memcpy(&header, buffer.get(), sizeof header);
  arrival->chunk = header.chunk;
  arrival->payload = buffer.get() + sizeof header;
  arrival->bytes = header.payload_bytes;
  arrival->energies = arrival->payload + header.payload_bytes;
  arrival->energy_count = header.statistics;
  arrival->first_bytes = header.first_bytes;
  const size_t told = sizeof header + arrival->bytes + arrival->energy_count * sizeof(Energy);
  if (static_cast<size_t>(peer.bytes) != told) {
    throw MpiError{"a chunk of " + std::to_string(peer.bytes) + " bytes whose header says " +
                   std::to_string(told)};
  }
  return true;
}

void Window::consume(int rank) {
  Peer &peer = peers_[rank];
  peer.arrived = false;
  post(&peer, rank, peer.consumed % static_cast<uint64_t>(width_));
  ++peer.consumed;
  if (peer.consumed - peer.credited >= static_cast<uint64_t>(std::max(1, width_ / 2))) {
    peer.credited = peer.consumed;
    credit_(rank, peer.consumed);
  }
}

}  // namespace gf
