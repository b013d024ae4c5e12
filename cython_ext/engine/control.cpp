#include "control.hpp"

#include <cstring>

namespace gf {

void Control::open(const Routes &routes, Traffic *traffic, Handler handler) {
  routes_ = routes;
  traffic_ = traffic;
  handler_ = std::move(handler);
  heard_.assign(static_cast<size_t>(routes.topology->size), now());
}

void Control::send(int peer, Message kind, uint32_t a, uint64_t b, const std::vector<uint8_t> &body) {
  auto message = std::make_unique<Sent>();
  ControlHeader header{kind, a, b};
  message->bytes.resize(sizeof header + body.size());
  std::memcpy(message->bytes.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(message->bytes.data() + sizeof header, body.data(), body.size());
  message->by = routes_.to(peer);
  message->ticket =
      message->by->send(peer, Transport::kControl, message->bytes.data(), message->bytes.size());
  if (routes_.leaves_node(peer)) {
    traffic_->wire += message->bytes.size();
    traffic_->uncompressed += message->bytes.size();
  }
  sends_.push_back(std::move(message));
}

void Control::send_to_others(Message kind, uint32_t a, uint64_t b, const std::vector<uint8_t> &body) {
  const Topology &topology = *routes_.topology;
  for (int peer = 0; peer < topology.size; ++peer) {
    if (peer != topology.rank) send(peer, kind, a, b, body);
  }
}

bool Control::progress() {
  bool moved = routes_.inside->progress();
  if (routes_.between != routes_.inside) moved |= routes_.between->progress();
  for (size_t i = 0; i < sends_.size();) {
    if (sends_[i]->by->done(sends_[i]->ticket)) {
      sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  moved |= receive(routes_.inside);
  if (routes_.between != routes_.inside) moved |= receive(routes_.between);
  return moved;
}

bool Control::receive(Transport *transport) {
  bool moved = false;
  int peer = 0;
  std::vector<uint8_t> message;
  while (transport->take_control(&peer, &message)) {
    heard_[peer] = now();
    ControlHeader header;
    if (message.size() < sizeof header) continue;
    std::memcpy(&header, message.data(), sizeof header);
    if (header.kind != Message::kHeartbeat) moved = true;
    handler_(peer, header, message.data() + sizeof header, message.size() - sizeof header);
  }
  return moved;
}

void Control::forgive(double seconds) {
  for (double &when : heard_) when += seconds;
}

// What a peer has not taken by now it will not take: the buffers stay, MPI may still read them.
void Control::close() {
  for (auto &message : sends_) message.release();
  sends_.clear();
}

}  // namespace gf
