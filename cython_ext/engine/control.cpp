#include "control.hpp"

#include <cstring>

namespace gf {

namespace {
constexpr int kTag = 1;

bool completed(MPI_Request *request) {
  int done = 0;
  check_mpi(MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}
}  // namespace

void Control::open(MPI_Comm comm, const Topology *topology, Traffic *traffic, Handler handler) {
  comm_ = comm;
  topology_ = topology;
  traffic_ = traffic;
  handler_ = std::move(handler);
  heard_.assign(static_cast<size_t>(topology->size), now());
}

void Control::send(int peer, Message kind, uint32_t a, uint64_t b, const std::vector<uint8_t> &body) {
  auto message = std::make_unique<Message_>();
  message->peer = peer;
  ControlHeader header{kind, a, b};
  message->bytes.resize(sizeof header + body.size());
  std::memcpy(message->bytes.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(message->bytes.data() + sizeof header, body.data(), body.size());
  check_mpi(MPI_Isend(message->bytes.data(), static_cast<int>(message->bytes.size()), MPI_BYTE, peer, kTag,
                      comm_, &message->request),
            "MPI_Isend");
  if (topology_->node_of[peer] != topology_->node) {
    traffic_->wire += message->bytes.size();
    traffic_->uncompressed += message->bytes.size();
  }
  sends_.push_back(std::move(message));
}

void Control::send_to_others(Message kind, uint32_t a, uint64_t b, const std::vector<uint8_t> &body) {
  for (int peer = 0; peer < topology_->size; ++peer) {
    if (peer != topology_->rank) send(peer, kind, a, b, body);
  }
}

bool Control::progress() {
  bool moved = false;
  for (size_t i = 0; i < sends_.size();) {
    if (completed(&sends_[i]->request)) {
      sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  for (;;) {
    int there = 0;
    MPI_Message handle;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, comm_, &there, &handle, &status), "MPI_Improbe");
    if (!there) break;
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    auto message = std::make_unique<Message_>();
    message->peer = status.MPI_SOURCE;
    message->bytes.resize(static_cast<size_t>(bytes));
    check_mpi(MPI_Imrecv(message->bytes.data(), bytes, MPI_BYTE, &handle, &message->request), "MPI_Imrecv");
    receives_.push_back(std::move(message));
  }
  if (receives_.empty()) return moved;
  // In order between two ranks; a message that is not yet whole holds up its own sender's only.
  std::vector<bool> held(heard_.size(), false);
  for (size_t i = 0; i < receives_.size();) {
    const int peer = receives_[i]->peer;
    if (held[peer] || !completed(&receives_[i]->request)) {
      held[peer] = true;
      ++i;
      continue;
    }
    auto message = std::move(receives_[i]);
    receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(i));
    heard_[peer] = now();
    ControlHeader header;
    if (message->bytes.size() < sizeof header) continue;
    std::memcpy(&header, message->bytes.data(), sizeof header);
    if (header.kind != Message::kHeartbeat) moved = true;
    handler_(peer, header, message->bytes.data() + sizeof header, message->bytes.size() - sizeof header);
  }
  return moved;
}

void Control::forgive(double seconds) {
  for (double &when : heard_) when += seconds;
}

// What a peer has not taken by now it will not take: the buffers stay, MPI may still read them.
void Control::close() {
  for (auto &message : sends_) message.release();
  for (auto &message : receives_) message.release();
  sends_.clear();
  receives_.clear();
}

}  // namespace gf
