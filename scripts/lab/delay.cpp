// A line that takes its time: `delay NANOSECONDS BYTES N` makes N links of two TAP devices each, far<i> and
// port<i>. What enters a link at one end leaves it at the other NANOSECONDS later, in order. At most BYTES
// wait in a direction; what comes on top is lost. It returns once the devices are there, and goes on in the
// background.
//
// Segments of up to 64 KB that TCP hands to a device (TSO) pass in one piece, as between two ends of a veth
// pair, so that one thread, which serves all links, carries several Gbit/s.

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

constexpr size_t kLargest = 10 + 18 + 65536;  // virtio's header, Ethernet's with a tag, the largest packet
constexpr int kBatch = 32;                    // packets taken from one device before others get their turn

[[noreturn]] void fail(const char *what) {
  fprintf(stderr, "delay: %s: %s\n", what, strerror(errno));
  exit(1);
}

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int tap(const std::string &name) {
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request = {};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name.c_str());
  if (ioctl(fd, TUNSETIFF, &request) < 0) fail(name.c_str());
  if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) fail("TUNSETOFFLOAD");
  return fd;
}

// A queue of packets in one ring of bytes. A packet lies in one piece; where the end of the ring is too short
// for the largest one, it stays unused.
class Line {
 public:
  Line(int from, int to, int64_t delay, size_t bytes) : from_(from), to_(to), delay_(delay), size_(bytes) {
    void *memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    ring_ = static_cast<char *>(memory);
  }

  // Take what has arrived.
  void take() {
    static char lost[kLargest];
    for (int i = 0; i < kBatch; i++) {
      bool room = make_room();
      char *place = room ? ring_ + head_ + sizeof(Head) : lost;
      ssize_t n = read(from_, place, kLargest);
      if (n <= 0) return;
      if (!room) continue;
      Head head = {now() + delay_, static_cast<uint64_t>(n)};
      memcpy(ring_ + head_, &head, sizeof head);
      head_ += step(n);
      used_ += step(n);
    }
  }

  // Hand on what is due. Returns when the next packet is, or -1 if none waits.
  int64_t release() {
    int64_t time = now();
    while (used_ != 0) {
      if (skip_ != 0 && tail_ == skip_) {
        used_ -= size_ - skip_;
        tail_ = skip_ = 0;
        continue;
      }
      Head head;
      memcpy(&head, ring_ + tail_, sizeof head);
      if (head.due > time && head.due > (time = now())) return head.due;
      // A device that is down, or just being moved, takes nothing: lost, as on any line.
      ssize_t written = write(to_, ring_ + tail_ + sizeof head, head.bytes);
      (void)written;
      tail_ += step(head.bytes);
      used_ -= step(head.bytes);
    }
    head_ = tail_ = skip_ = 0;
    return -1;
  }

  int from() const { return from_; }

 private:
  struct Head {
    int64_t due;
    uint64_t bytes;
  };

  static size_t step(size_t bytes) { return (sizeof(Head) + bytes + 7) / 8 * 8; }

  // Whether the largest packet fits at head_, which moves to the ring's start for it if need be.
  bool make_room() {
    if (skip_ == 0 && head_ >= tail_) {
      if (size_ - head_ >= step(kLargest)) return true;
      if (tail_ <= step(kLargest)) return false;
      skip_ = head_;
      used_ += size_ - head_;
      head_ = 0;
      return true;
    }
    return tail_ - head_ > step(kLargest);
  }

  int from_, to_;
  int64_t delay_;
  size_t size_;
  char *ring_ = nullptr;
  size_t head_ = 0, tail_ = 0;  // where the next packet goes, where the first one lies
  size_t used_ = 0;             // bytes between them
  size_t skip_ = 0;             // where the unused end begins; 0: none
};

void carry(std::vector<Line> &lines) {
  std::vector<pollfd> polled;
  for (Line &line : lines) polled.push_back({line.from(), POLLIN, 0});
  while (true) {
    int64_t first = -1;
    for (Line &line : lines) {
      int64_t due = line.release();
      if (due >= 0 && (first < 0 || due < first)) first = due;
    }
    int64_t left = first < 0 ? 0 : first - now();
    if (left < 0) left = 0;
    timespec wait = {left / 1000000000, left % 1000000000};
    if (ppoll(polled.data(), polled.size(), first < 0 ? nullptr : &wait, nullptr) <= 0) continue;
    for (size_t i = 0; i < lines.size(); i++)
      if (polled[i].revents & POLLIN) lines[i].take();
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: delay NANOSECONDS BYTES LINKS\n");
    return 2;
  }
  int64_t delay = atoll(argv[1]);
  size_t bytes = strtoull(argv[2], nullptr, 10) + 4 * kLargest;
  std::vector<Line> lines;
  for (int i = 0; i < atoi(argv[3]); i++) {
    int far = tap("far" + std::to_string(i)), port = tap("port" + std::to_string(i));
    lines.emplace_back(far, port, delay, bytes);
    lines.emplace_back(port, far, delay, bytes);
  }
  pid_t child = fork();
  if (child < 0) fail("fork");
  if (child > 0) _exit(0);
  setsid();
  int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; fd++) dup2(null, fd);
  // Woken in time, also when ranks use every core.
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  setpriority(PRIO_PROCESS, 0, -20);
  carry(lines);
}
