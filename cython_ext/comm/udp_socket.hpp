// The sockets of a rank, one for each path: datagrams out and in, several to a system call.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gf {

struct DatagramCounts {
  uint64_t packets = 0, bytes = 0;  // handed to the network, headers of UDP and IP counted
};

class UdpSocket {
 public:
  static constexpr size_t kBatch = 64;  // datagrams; also what the kernel takes as one (UDP_MAX_SEGMENTS)

  UdpSocket() = default;
  ~UdpSocket();
  UdpSocket(const UdpSocket &) = delete;
  UdpSocket &operator=(const UdpSocket &) = delete;

  // Binds to an address ("" for any) and port (0: any free one); what went wrong, or nothing.
  std::string open(const std::string &address, int port, size_t largest);
  void close();
  int port() const { return port_; }
  bool is_open() const { return fd_ >= 0; }

  // Room for the next datagram, or null while the batch is full; `commit` says what was written.
  uint8_t *room();
  void commit(const sockaddr_in &to, size_t bytes);
  // Sends what was committed; false where the kernel has no room now, then the rest stays.
  bool flush(DatagramCounts *counts, std::string *error);

  // Calls `take(data, bytes)` for each datagram that is there, some hundreds at most, and before some of them
  // `fetched()`; whether any was.
  template <class Fetched, class Take>
  bool receive(Fetched &&fetched, Take &&take) {
    bool any = false;
    for (int round = 0; round < 4; ++round) {
      const int n = fill();
      if (n > 0) fetched();
      for (int i = 0; i < n; ++i) {
        const size_t bytes = arrived_[static_cast<size_t>(i)].bytes;
        const size_t piece = arrived_[static_cast<size_t>(i)].piece;
        uint8_t *data = incoming_.data() + static_cast<size_t>(i) * kSlot;
        for (size_t at = 0; at < bytes; at += piece) take(data + at, bytes - at < piece ? bytes - at : piece);
        any = true;
      }
      if (n < kSlots) break;
    }
    return any;
  }

 private:
  static constexpr int kSlots = 16;
  static constexpr size_t kSlot = 65536;
  struct Out {
    sockaddr_in to;
    size_t offset, bytes;
  };
  struct Arrived {
    size_t bytes, piece;
  };
  int fill();

  int fd_ = -1, port_ = 0;
  size_t largest_ = 0;
  bool segments_ = true;  // the kernel cuts a long one into datagrams
  std::vector<uint8_t> outgoing_, incoming_;
  std::vector<Out> batch_;
  Arrived arrived_[kSlots];
};

}  // namespace gf
