#include "worker.hpp"

#include <time.h>

#include <cstring>

namespace gf {

void Worker::ok(int error, const char *what) const {
  if (error) {
    throw StepError{Failure::kInternal,
                    std::string(gpu_->name) + ":" + std::to_string(device_) + ", " + what + ": " +
                        gpu_->error_text(error) + " (" + std::to_string(error) + ")",
                    true};
  }
}

void *Worker::allocate(size_t bytes) {
  void *address = nullptr;
  ok(gpu_->allocate(bytes, &address), "room for chunks");
  memory_.push_back(address);
  return address;
}

uint8_t *Worker::allocate_host(size_t bytes) const {
  void *address = nullptr;
  ok(gpu_->allocate_host(bytes, &address), "pinned memory for payloads");
  return static_cast<uint8_t *>(address);
}

void Worker::open(const gf_gpu_api *gpu, int device, size_t nodes, size_t chunk_bytes, size_t capacity,
                  size_t energies) {
  gpu_ = gpu;
  device_ = device;
  use();
  ok(gpu_->work_apart(), "working apart");
  ok(gpu_->stream_create(&stream_), "a stream");
  ok(gpu_->event_create(&event_), "an event");
  head_ = sizeof(Report) + (nodes + 1) / 2 * 2 * sizeof(int32_t);
  const size_t bytes = head_ + 4 * energies * sizeof(double);
  report_device_ = allocate(bytes);
  report_host_ = allocate_host(bytes);
  host_memory_.push_back(report_host_);
  for (float **buffer : {&x, &total, &lost}) *buffer = static_cast<float *>(allocate(chunk_bytes));
  payload = static_cast<uint8_t *>(allocate(capacity));
  for (Staging &s : stagings_) {
    s.device = static_cast<uint8_t *>(allocate(capacity));
    s.host = allocate_host(capacity);
    host_memory_.push_back(s.host);
    ok(gpu_->event_create(&s.event), "an event");
  }
}

void Worker::settle(double until) {
  if (!event_ || gpu_->set_device(device_) || gpu_->event_record(event_, stream_)) return;
  int done = 0;
  while (!gpu_->event_done(event_, &done) && !done && now() < until) {
    timespec nap{0, 20000};
    nanosleep(&nap, nullptr);
  }
}

void Worker::close() {
  if (!gpu_ || gpu_->set_device(device_)) return;
  for (void *address : memory_) gpu_->release(address);
  for (void *address : host_memory_) gpu_->release_host(address);
  for (Staging &s : stagings_) {
    if (s.event) gpu_->event_destroy(s.event);
  }
  if (event_) gpu_->event_destroy(event_);
  if (stream_) gpu_->stream_destroy(stream_);
  *this = Worker();
}

void Worker::begin() {
  use();
  ok(gpu_->fill(report_device_, 0, head_, stream_), "clearing a report");
  // Any number but 0 says "finite".
  ok(gpu_->fill(&reported()->finite, 1, 2 * sizeof(int32_t), stream_), "clearing a report");
  own.clear();
  statistics = Statistics();
}

void *Worker::scratch(const gf_codec_spec &spec, size_t n) {
  const size_t bytes = gpu_->scratch_bytes(&spec, n);
  if (bytes > scratch_size_) {
    // The old one stays until the end: kernels may use it.
    scratch_ = allocate(bytes);
    scratch_size_ = bytes;
  }
  return scratch_;
}

void Worker::report(size_t energies) {
  const size_t bytes = head_ + 4 * energies * sizeof(double);
  ok(gpu_->copy(report_host_, report_device_, bytes, GF_GPU_TO_HOST, stream_, 0), "copying a report");
  ok(gpu_->event_record(event_, stream_), "recording an event");
}

bool Worker::done() {
  int done = 0;
  use();
  ok(gpu_->event_done(event_, &done), "work on a chunk");
  return done != 0;
}

std::vector<Energy> Worker::answered_energies(size_t set, size_t count) const {
  const auto *pairs =
      reinterpret_cast<const double *>(static_cast<const uint8_t *>(report_host_) + head_) + 2 * count * set;
  std::vector<Energy> energies(count);
  for (size_t i = 0; i < count; ++i) {
    energies[i].gradient = pairs[2 * i];
    energies[i].residual = pairs[2 * i + 1];
  }
  return energies;
}

Worker::Staging *Worker::staging() {
  use();
  for (Staging &s : stagings_) {
    int done = 1;
    if (s.busy) ok(gpu_->event_done(s.event, &done), "decoding a payload");
    if (done) {
      s.busy = false;
      return &s;
    }
  }
  return nullptr;
}

void Worker::bring(Staging *s, const uint8_t *from, size_t bytes) {
  std::memcpy(s->host, from, bytes);
  ok(gpu_->copy(s->device, s->host, bytes, GF_GPU_TO_DEVICE, stream_, 0), "copying a payload");
  s->busy = true;
}

void Worker::consumed(Staging *s) { ok(gpu_->event_record(s->event, stream_), "recording an event"); }

}  // namespace gf
