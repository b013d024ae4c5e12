#include "window.hpp"

#include <algorithm>
#include <cstring>

#include "worker.hpp"

namespace gf {

bool SendSlot::free() {
  while (!under_way_.empty()) {
    const auto &last = under_way_.back();
    if (!last.first->done(last.second)) return false;
    under_way_.pop_back();
  }
  return true;
}

void SendSlot::reserve_pinned(size_t capacity, const Worker &worker) {
  if (pinned_) return;
  const gf_gpu_api *gpu = worker.gpu();
  buffer_ = Bytes(worker.allocate_host(capacity), [gpu](uint8_t *p) { gpu->release_host(p); });
  pinned_ = true;
}

size_t SendSlot::seal(uint64_t chunk, size_t payload_bytes, uint64_t first_bytes, uint64_t missing,
                      const std::vector<Energy> &energies) {
  DataHeader header;
  header.chunk = chunk;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  header.statistics = static_cast<uint32_t>(energies.size());
  header.first_bytes = first_bytes;
  header.missing = missing;
  std::memcpy(buffer_.get(), &header, sizeof header);
  const size_t extra = energies.size() * sizeof(Energy);
  if (extra) std::memcpy(payload() + payload_bytes, energies.data(), extra);
  return sizeof header + payload_bytes + extra;
}

void SendSlot::send(Transport *transport, int peer, int channel, size_t bytes, double weight) {
  under_way_.emplace_back(transport, transport->send(peer, channel, buffer_.get(), bytes, weight));
}

void Window::open(Transport *transport, int channel, int width, size_t capacity,
                  const std::vector<int> &peers, int world, Credit credit) {
  transport_ = transport;
  channel_ = channel;
  width_ = width;
  capacity_ = capacity;
  credit_ = std::move(credit);
  peers_.resize(static_cast<size_t>(world));
  for (int rank : peers) {
    Peer &peer = peers_[rank];
    peer.buffers.resize(static_cast<size_t>(width));
    for (size_t slot = 0; slot < peer.buffers.size(); ++slot) {
      peer.buffers[slot].reset(new uint8_t[capacity]);
      post(&peer, rank, slot);
    }
  }
}

void Window::post(Peer *peer, int rank, size_t slot) {
  transport_->post(rank, channel_, peer->buffers[slot].get(), capacity_);
}

void Window::close() {
  for (Peer &peer : peers_) std::vector<Buffer>().swap(peer.buffers);
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

bool Window::front(int rank, Arrival *arrival, double patience) {
  Peer &peer = peers_[rank];
  const size_t slot = peer.consumed % static_cast<uint64_t>(width_);
  if (!peer.arrived) {
    if (!transport_->take(rank, channel_, &peer.bytes, patience)) return false;
    peer.arrived = true;
  }
  if (peer.bytes == Transport::kMissing) {
    *arrival = Arrival{0, nullptr, 0, nullptr, 0, 0, 0};
    return true;
  }
  const auto &buffer = peer.buffers[slot];
  DataHeader header;
  if (peer.bytes < sizeof header) {
    throw TransportError{"a chunk of " + std::to_string(peer.bytes) +
                         " bytes, which is less than its header"};
  }
  std::memcpy(&header, buffer.get(), sizeof header);
  arrival->chunk = header.chunk;
  arrival->payload = buffer.get() + sizeof header;
  arrival->bytes = header.payload_bytes;
  arrival->energies = arrival->payload + header.payload_bytes;
  arrival->energy_count = header.statistics;
  arrival->first_bytes = header.first_bytes;
  arrival->missing = header.missing;
  const size_t told = sizeof header + arrival->bytes + arrival->energy_count * sizeof(Energy);
  if (peer.bytes != told) {
    throw TransportError{"a chunk of " + std::to_string(peer.bytes) + " bytes whose header says " +
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
