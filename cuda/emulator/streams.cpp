// Streams and events: each stream a thread that does what is put there, in order.
#include <time.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "emulator.h"

namespace gf_emulator {
namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// How often an event was recorded and reached; streams hold on to it, whatever its owner does.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  double at = 0;
};

void await(const std::shared_ptr<Record> &r, uint64_t count) {
  std::unique_lock<std::mutex> lock(r->mutex);
  r->changed.wait(lock, [&] { return r->reached >= count; });
}

}  // namespace

class Event {
 public:
  std::shared_ptr<Record> record = std::make_shared<Record>();
};

class Stream {
 public:
  Stream() : thread_([this] { work(); }) {}
  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void put(std::function<void()> f) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(f));
    }
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::function<void()> f = queue_.front();
      lock.unlock();
      f();
      lock.lock();
      queue_.pop_front();  // only now: until then the stream is not empty
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::thread thread_;  // the last member: it uses the others
};

namespace {

std::mutex streams_mutex;
std::set<Stream *> streams;  // the default one is not among them

// Never destroyed: a program may end while something is on it.
Stream &resolve(Stream *stream) {
  static Stream *default_stream = new Stream();
  return stream ? *stream : *default_stream;
}

}  // namespace

void enqueue(Stream *stream, std::function<void()> work) { resolve(stream).put(std::move(work)); }

Stream *create_stream() {
  auto *made = new Stream();
  std::lock_guard<std::mutex> lock(streams_mutex);
  streams.insert(made);
  return made;
}

void destroy_stream(Stream *stream) {
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    streams.erase(stream);
  }
  delete stream;
}

void synchronize_all() {
  resolve(nullptr).synchronize();
  std::lock_guard<std::mutex> lock(streams_mutex);
  for (Stream *stream : streams) stream->synchronize();
}

void synchronize(Stream *stream) { resolve(stream).synchronize(); }
Event *create_event() { return new Event(); }
void destroy_event(Event *event) { delete event; }

void record(Event *event, Stream *stream) {
  const std::shared_ptr<Record> r = event->record;
  {
    std::lock_guard<std::mutex> lock(r->mutex);
    ++r->recorded;
  }
  enqueue(stream, [r] {
    std::lock_guard<std::mutex> lock(r->mutex);
    ++r->reached;
    r->at = now();
    r->changed.notify_all();
  });
}

void wait(Stream *stream, Event *event) {
  const std::shared_ptr<Record> r = event->record;
  uint64_t count;
  {
    std::lock_guard<std::mutex> lock(r->mutex);
    count = r->recorded;
  }
  enqueue(stream, [r, count] { await(r, count); });
}

bool done(Event *event) {
  std::lock_guard<std::mutex> lock(event->record->mutex);
  return event->record->reached == event->record->recorded;
}

void synchronize(Event *event) {
  uint64_t count;
  {
    std::lock_guard<std::mutex> lock(event->record->mutex);
    count = event->record->recorded;
  }
  await(event->record, count);
}

double seconds_between(Event *begin, Event *end) { return end->record->at - begin->record->at; }

}  // namespace gf_emulator
