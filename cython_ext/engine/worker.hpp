// What the steps of the chunks use of a device: for each of them a stream, and room for one chunk at a time.
// The text to it is "Gradients on a device" in docs/architecture.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../../cuda/gpu_api.h"
#include "protocol.hpp"

namespace gf {

// Thrown by a step of a chunk: the domain fails with it.
struct StepError {
  Failure kind;
  std::string text;
  bool anonymous = false;  // the text names neither tensor nor rank
};

// How far a step is with the chunk at its cursor. What it launched is awaited by an event, never by blocking.
enum class Phase {
  kIdle,        // nothing is launched
  kOwn,         // this rank's own part is being encoded (stepped codecs, at home)
  kCollecting,  // the other nodes' payloads are added as they arrive
  kEncoding,    // the payload is being made; its size is not known yet
  kFinishing    // it is being copied to the host, and decoded here
};

class Worker {
 public:
  // The most that a kernel tells of one chunk.
  struct Report {
    uint64_t size = 0;         // of the payload
    int32_t finite = 0;        // of the result
    int32_t input_finite = 0;  // of this rank's part
    int32_t status = 0;        // of decoding what was made here
    int32_t reserved = 0;
  };
  // A payload on its way to the device.
  struct Staging {
    uint8_t *host = nullptr, *device = nullptr;
    void *event = nullptr;
    bool busy = false;
  };

  void open(const gf_gpu_api *gpu, int device, size_t nodes, size_t chunk_bytes, size_t capacity,
            size_t energies);
  // Waits for what is under way, until then at most (as now() counts); after a failure memory is about to be
  // freed.
  void settle(double until);
  void close();

  const gf_gpu_api *gpu() const { return gpu_; }
  void *stream() const { return stream_; }
  void use() const { ok(gpu_->set_device(device_), "choosing the device"); }
  void ok(int error, const char *what) const;

  // Begins a chunk: all that is reported is as if nothing had happened.
  void begin();
  // Room for kernels of a codec; grows, so it allocates at the first chunk only.
  void *scratch(const gf_codec_spec &spec, size_t n);
  size_t scratch_size() const { return scratch_size_; }
  // Copies what was reported, and `energies` pairs of each set, to the host; `done` tells when it is there.
  void report(size_t energies);
  bool done();
  // It waits for the device, not for other ranks.
  bool waits() const { return phase != Phase::kIdle && phase != Phase::kCollecting; }

  // On the device.
  Report *reported() const { return static_cast<Report *>(report_device_); }
  int32_t *status_of(size_t node) const {
    return reinterpret_cast<int32_t *>(static_cast<uint8_t *>(report_device_) + sizeof(Report)) + node;
  }
  // Pairs of energies: of tensor i in set 0 or 1, of `count` tensors.
  double *energies(size_t set, size_t count) const {
    return reinterpret_cast<double *>(static_cast<uint8_t *>(report_device_) + head_) + 2 * count * set;
  }

  // On the host, once `done`.
  const Report &answer() const { return *static_cast<const Report *>(report_host_); }
  int32_t answered_status(size_t node) const {
    return reinterpret_cast<const int32_t *>(static_cast<const uint8_t *>(report_host_) +
                                             sizeof(Report))[node];
  }
  std::vector<Energy> answered_energies(size_t set, size_t count) const;

  // A free place for a payload, or null.
  Staging *staging();
  // Brings `bytes` there; `consumed` is called when kernels that read it are launched.
  void bring(Staging *s, const uint8_t *payload, size_t bytes);
  void consumed(Staging *s);

  uint8_t *allocate_host(size_t bytes) const;

  Phase phase = Phase::kIdle;
  float *x = nullptr, *total = nullptr, *lost = nullptr;  // a chunk each, on the device
  uint8_t *payload = nullptr;
  // Of the chunk under way.
  std::vector<Energy> own;  // energies of this rank's part
  Statistics statistics;

 private:
  static constexpr size_t kStagings = 2;
  void *allocate(size_t bytes);

  const gf_gpu_api *gpu_ = nullptr;
  int device_ = 0;
  void *stream_ = nullptr, *event_ = nullptr;
  size_t head_ = 0;
  void *report_device_ = nullptr, *report_host_ = nullptr;
  void *scratch_ = nullptr;
  size_t scratch_size_ = 0;
  Staging stagings_[kStagings];
  std::vector<void *> memory_, host_memory_;
};

// The workers of one device, one for each step.
struct Workers {
  Worker sum, reduce, receive;
};
using WorkersOf = std::map<std::pair<const gf_gpu_api *, int>, Workers>;

}  // namespace gf
