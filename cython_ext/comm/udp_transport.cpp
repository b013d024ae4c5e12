#include "udp_transport.hpp"

#include <arpa/inet.h>

#include "clock.hpp"

namespace gf {

UdpTransport::UdpTransport(int rank, uint32_t session, size_t mtu, bool parity, double deadline)
    : shared_(mtu) {
  shared_.rank = rank;
  shared_.session = session;
  shared_.parity = parity;
  shared_.deadline = deadline;
}

std::string UdpTransport::add_path(const std::string &address, int port) {
  auto socket = std::make_unique<UdpSocket>();
  std::string why = socket->open(address, port, shared_.sizes.body + kSealing);
  if (why.empty()) shared_.sockets.push_back(std::move(socket));
  return why;
}

std::string UdpTransport::add_peer(int rank, const std::vector<std::string> &addresses,
                                   const std::vector<int> &ports, const uint8_t *keys_out,
                                   const uint8_t *keys_in, size_t count) {
  // Under the same keys its counters, which are nonces, would begin anew.
  if (peers_.count(rank)) return "rank " + std::to_string(rank) + " is a peer already";
  std::vector<sockaddr_in> paths;
  for (size_t p = 0; p < addresses.size() && p < shared_.sockets.size(); ++p) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(ports[p]));
    if (inet_pton(AF_INET, addresses[p].c_str(), &to.sin_addr) != 1)
      return addresses[p] + " of rank " + std::to_string(rank) + " is not an IPv4 address";
    paths.push_back(to);
  }
  if (paths.empty()) return "rank " + std::to_string(rank) + " has no address";
  auto made = std::make_unique<UdpPeer>(&shared_, rank, paths);
  if (!made->open(keys_out, keys_in, count)) return "libcrypto refused a key";
  peers_[rank] = std::move(made);
  return {};
}

UdpPeer &UdpTransport::peer(int rank) {
  const auto found = peers_.find(rank);
  if (found == peers_.end()) throw TransportError{"UDP: rank " + std::to_string(rank) + " is no peer"};
  return *found->second;
}

Transport::Ticket UdpTransport::send(int rank, int channel, const uint8_t *data, size_t bytes,
                                     double weight) {
  return peer(rank).send(channel, data, bytes, weight);
}

void UdpTransport::post(int rank, int channel, uint8_t *buffer, size_t capacity) {
  peer(rank).inbox().post(channel, buffer, capacity);
}

bool UdpTransport::take(int rank, int channel, size_t *bytes, double patience) {
  return peer(rank).inbox().take(channel, bytes, patience, now_);
}

bool UdpTransport::take_control(int *rank, std::vector<uint8_t> *message) {
  for (auto &entry : peers_) {
    if (!entry.second->inbox().take_control(message)) continue;
    *rank = entry.first;
    return true;
  }
  return false;
}

bool UdpTransport::progress() {
  if (closed_) return false;
  bool moved = false;
  for (auto &socket : shared_.sockets) {
    // Looked at only now: a thread that stood still since would take a packet for older than it is.
    moved |= socket->receive([&] { now_ = gf::now(); },
                             [&](const uint8_t *data, size_t bytes) {
                               PacketHeader header;
                               if (bytes < sizeof header) {
                                 ++shared_.counts.malformed;
                                 return;
                               }
                               std::memcpy(&header, data, sizeof header);
                               const auto found = header.magic == PacketHeader::kMagic &&
                                                          header.version() == PacketHeader::kVersion &&
                                                          header.session == shared_.session
                                                      ? peers_.find(header.source)
                                                      : peers_.end();
                               if (found == peers_.end()) {
                                 ++shared_.counts.malformed;
                                 return;
                               }
                               found->second->receive(header, data, bytes, now_);
                             });
  }
  now_ = gf::now();
  for (auto &entry : peers_) moved |= entry.second->tick(now_);
  for (auto &socket : shared_.sockets) {
    std::string error;
    socket->flush(&shared_.sent, &error);
    if (!error.empty()) throw TransportError{"UDP: " + error};
  }
  shared_.counts.datagrams = shared_.sent.packets;
  shared_.counts.bytes = shared_.sent.bytes;
  return moved;
}

bool UdpTransport::busy() const {
  if (closed_) return false;
  for (const auto &entry : peers_) {
    if (entry.second->busy()) return true;
  }
  return false;
}

void UdpTransport::close() {
  if (closed_) return;
  closed_ = true;
  for (auto &entry : peers_) {
    try {
      entry.second->farewell(now_);
    } catch (const TransportError &) {  // it ends anyway
    }
  }
  for (auto &socket : shared_.sockets) {
    std::string error;
    if (socket->is_open()) socket->flush(&shared_.sent, &error);
    socket->close();
  }
}

std::vector<UdpTransport::PathState> UdpTransport::paths(int rank) const {
  std::vector<PathState> states;
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return states;
  for (const PathOut &path : found->second->paths()) {
    const Congestion &c = path.congestion();
    states.push_back({c.rtt(), c.min_rtt(), c.bandwidth(), c.loss(), path.reorder(), path.dead});
  }
  return states;
}

}  // namespace gf
