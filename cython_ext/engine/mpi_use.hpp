// Calls of MPI by other threads than the engine's, and the end of MPI, which another library may bring about.
//
// Horovod finalizes MPI, in a thread of its own, as soon as one rank shuts it down. A rank that then still
// waits for a barrier, which for the others is over, would call into nothing. So whoever waits says so, and
// the hook that MPI_Finalize begins with (engine.cpp) waits for it, for some time; no call begins after that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace gf {

class MpiUse {
 public:
  static MpiUse &of_process() {
    static MpiUse use;
    return use;
  }

  // Around what takes several calls.
  void begin() {
    std::lock_guard<std::mutex> hold(lock_);
    ++wanted_;
  }
  void end() {
    std::lock_guard<std::mutex> hold(lock_);
    --wanted_;
    changed_.notify_all();
  }
  // Around each call; none may be made where this is false.
  bool enter() {
    std::lock_guard<std::mutex> hold(lock_);
    if (over_) return false;
    ++inside_;
    return true;
  }
  void leave() {
    std::lock_guard<std::mutex> hold(lock_);
    --inside_;
    changed_.notify_all();
  }
  // MPI is about to be finalized. Waits for who is at something, then only for calls under way.
  void finalize(double patience) {
    std::unique_lock<std::mutex> hold(lock_);
    changed_.wait_for(hold, std::chrono::duration<double>(patience), [this] { return wanted_ == 0; });
    over_ = true;
    changed_.wait_for(hold, std::chrono::duration<double>(patience), [this] { return inside_ == 0; });
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int wanted_ = 0, inside_ = 0;
  bool over_ = false;
};

}  // namespace gf
