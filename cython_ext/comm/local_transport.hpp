// Messages between ranks of one process: for tests of what goes by any transport.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "transport.hpp"

namespace gf {

class LocalHub {
 public:
  void put(int to, int from, int channel, std::vector<uint8_t> bytes) {
    std::lock_guard<std::mutex> hold(lock_);
    queues_[std::make_tuple(to, from, channel)].push_back(std::move(bytes));
  }
  bool get(int to, int from, int channel, std::vector<uint8_t> *bytes) {
    std::lock_guard<std::mutex> hold(lock_);
    auto &queue = queues_[std::make_tuple(to, from, channel)];
    if (queue.empty()) return false;
    *bytes = std::move(queue.front());
    queue.pop_front();
    return true;
  }

 private:
  std::mutex lock_;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<uint8_t>>> queues_;
};

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalHub> hub, int rank, int size)
      : hub_(std::move(hub)), rank_(rank), size_(size) {}

  Ticket send(int peer, int channel, const uint8_t *data, size_t bytes, double = 0) override {
    hub_->put(peer, rank_, channel, std::vector<uint8_t>(data, data + bytes));
    return 0;
  }
  bool done(Ticket) override { return true; }
  void post(int peer, int channel, uint8_t *buffer, size_t capacity) override {
    posted_[{peer, channel}].emplace_back(buffer, capacity);
  }
  bool take(int peer, int channel, size_t *bytes, double = 0) override {
    auto &posted = posted_[{peer, channel}];
    std::vector<uint8_t> message;
    if (posted.empty() || !hub_->get(rank_, peer, channel, &message)) return false;
    if (message.size() > posted.front().second) throw TransportError{"a message longer than its room"};
    std::copy(message.begin(), message.end(), posted.front().first);
    posted.pop_front();
    *bytes = message.size();
    return true;
  }
  bool take_control(int *peer, std::vector<uint8_t> *message) override {
    for (int from = 0; from < size_; ++from) {
      if (!hub_->get(rank_, from, kControl, message)) continue;
      *peer = from;
      return true;
    }
    return false;
  }
  bool progress() override { return false; }
  void close() override { posted_.clear(); }

 private:
  std::shared_ptr<LocalHub> hub_;
  int rank_, size_;
  std::map<std::pair<int, int>, std::deque<std::pair<uint8_t *, size_t>>> posted_;
};

}  // namespace gf
