#include "udp_socket.hpp"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace gf {

namespace {
constexpr int kBuffer = 8 << 20;  // bytes asked for in each direction
constexpr size_t kMostAtOnce = 65000;

void enlarge(int fd, int forced, int plain) {
  if (setsockopt(fd, SOL_SOCKET, forced, &kBuffer, sizeof kBuffer) != 0)
    setsockopt(fd, SOL_SOCKET, plain, &kBuffer, sizeof kBuffer);
}
}  // namespace

UdpSocket::~UdpSocket() { close(); }

std::string UdpSocket::open(const std::string &address, int port, size_t largest) {
  largest_ = largest;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_ANY);
  const std::string where = (address.empty() ? "any address" : address) + ", port " + std::to_string(port);
  if (!address.empty() && inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1)
    return where + ": not an IPv4 address";
  fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return std::string("socket: ") + std::strerror(errno);
  if (bind(fd_, reinterpret_cast<sockaddr *>(&at), sizeof at) != 0) {
    const std::string why = where + ": " + std::strerror(errno);
    close();
    return why;
  }
  enlarge(fd_, SO_RCVBUFFORCE, SO_RCVBUF);
  enlarge(fd_, SO_SNDBUFFORCE, SO_SNDBUF);
  // Never in fragments, and whatever ICMP says of the way, which anybody can: too long is what the interface
  // does not carry.
  const int probe = IP_PMTUDISC_PROBE;
  setsockopt(fd_, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof probe);
  const int one = 1;
  setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
  socklen_t size = sizeof at;
  getsockname(fd_, reinterpret_cast<sockaddr *>(&at), &size);
  port_ = ntohs(at.sin_port);
  outgoing_.resize(kBatch * largest_);
  incoming_.resize(static_cast<size_t>(kSlots) * kSlot);
  return {};
}

void UdpSocket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  batch_.clear();
  std::vector<uint8_t>().swap(outgoing_);
  std::vector<uint8_t>().swap(incoming_);
}

uint8_t *UdpSocket::room() {
  if (batch_.size() >= kBatch) return nullptr;
  const size_t used = batch_.empty() ? 0 : batch_.back().offset + batch_.back().bytes;
  if (used + largest_ > outgoing_.size()) return nullptr;
  return outgoing_.data() + used;
}

void UdpSocket::commit(const sockaddr_in &to, size_t bytes) {
  const size_t used = batch_.empty() ? 0 : batch_.back().offset + batch_.back().bytes;
  batch_.push_back({to, used, bytes});
}

bool UdpSocket::flush(DatagramCounts *counts, std::string *error) {
  while (!batch_.empty()) {
    mmsghdr messages[kBatch] = {};
    iovec pieces[kBatch];
    size_t datagrams[kBatch];
    alignas(cmsghdr) char control[kBatch][CMSG_SPACE(sizeof(uint16_t))];
    size_t count = 0;
    for (size_t i = 0; i < batch_.size();) {
      // Neighbours of one length to one place go as one; the last may be shorter.
      size_t n = 1, bytes = batch_[i].bytes;
      while (segments_ && i + n < batch_.size() && batch_[i + n - 1].bytes == batch_[i].bytes &&
             batch_[i + n].bytes <= batch_[i].bytes && bytes + batch_[i + n].bytes <= kMostAtOnce &&
             std::memcmp(&batch_[i + n].to, &batch_[i].to, sizeof(sockaddr_in)) == 0) {
        bytes += batch_[i + n].bytes;
        ++n;
      }
      pieces[count] = {outgoing_.data() + batch_[i].offset, bytes};
      msghdr &m = messages[count].msg_hdr;
      m.msg_name = &batch_[i].to;
      m.msg_namelen = sizeof(sockaddr_in);
      m.msg_iov = &pieces[count];
      m.msg_iovlen = 1;
      if (n > 1) {
        m.msg_control = control[count];
        m.msg_controllen = sizeof control[count];
        cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        const auto piece = static_cast<uint16_t>(batch_[i].bytes);
        std::memcpy(CMSG_DATA(c), &piece, sizeof piece);
      }
      datagrams[count++] = n;
      i += n;
    }
    const int sent = sendmmsg(fd_, messages, static_cast<unsigned>(count), 0);
    size_t gone = 0;
    if (sent > 0) {
      for (int i = 0; i < sent; ++i) gone += datagrams[i];
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == EINTR) {
      return false;
    } else if (errno == EMSGSIZE && datagrams[0] == 1) {
      *error = "a datagram of " + std::to_string(largest_) + " bytes is too long for a link on the way: " +
               "set GRADFLOW_UDP_MTU, on all ranks, to what it carries";
      batch_.erase(batch_.begin());  // shorter ones may still tell the others why it ends
      return false;
    } else if (datagrams[0] > 1 && segments_ &&
               (errno == EINVAL || errno == EIO || errno == EOPNOTSUPP || errno == EMSGSIZE)) {
      segments_ = false;  // this kernel or device does not cut
      continue;
    } else {  // the network is unreachable, a filter refuses: as if lost on the way
      gone = datagrams[0];
    }
    for (size_t i = 0; i < gone; ++i) counts->bytes += batch_[i].bytes + 28;
    counts->packets += gone;
    // What stays is moved to the front when the batch is next built up from nothing.
    batch_.erase(batch_.begin(), batch_.begin() + static_cast<std::ptrdiff_t>(gone));
  }
  return true;
}

int UdpSocket::fill() {
  mmsghdr messages[kSlots] = {};
  iovec pieces[kSlots];
  alignas(cmsghdr) char control[kSlots][CMSG_SPACE(sizeof(int))];
  for (int i = 0; i < kSlots; ++i) {
    pieces[i] = {incoming_.data() + static_cast<size_t>(i) * kSlot, kSlot};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_control = control[i];
    messages[i].msg_hdr.msg_controllen = sizeof control[i];
  }
  const int n = recvmmsg(fd_, messages, kSlots, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < n; ++i) {
    const size_t bytes = messages[i].msg_len;
    size_t piece = std::max<size_t>(bytes, 1);
    for (cmsghdr *c = CMSG_FIRSTHDR(&messages[i].msg_hdr); c; c = CMSG_NXTHDR(&messages[i].msg_hdr, c)) {
      if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO) continue;
      int size = 0;
      std::memcpy(&size, CMSG_DATA(c), sizeof size);
      if (size > 0) piece = static_cast<size_t>(size);
    }
    arrived_[i] = {bytes, piece};
  }
  return std::max(n, 0);
}

}  // namespace gf
