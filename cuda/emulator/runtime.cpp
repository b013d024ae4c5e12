// The runtime's part of gpu_api.h for the emulator: its memory is the host's.
#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "../library.h"

namespace gradflow_gpu {
namespace {

constexpr int kNoMemory = 1;
constexpr size_t kAlignment = 256;  // as CUDA's
constexpr size_t kSoiled = 1 << 20;

gf_emulator::Stream *on(void *stream) { return static_cast<gf_emulator::Stream *>(stream); }
gf_emulator::Event *event_of(void *event) { return static_cast<gf_emulator::Event *>(event); }

// What was allocated, by its end: so an address can be asked where it lies.
std::mutex mutex;
std::set<std::pair<uintptr_t, uintptr_t>> allocated;

}  // namespace

const char *const kLibraryName = "emulated";
const int kLibraryDlpackType = 1;  // kDLCPU

const char *error_text(int error) {
  const char *own = own_error_text(error);
  return own ? own : "out of memory";
}

int device_count(int *count) {
  *count = 1;
  return GF_GPU_OK;
}

int device_name(int, char *text, size_t size) {
  snprintf(text, size, "emulated on the CPU, for tests");
  return GF_GPU_OK;
}

int set_device(int device) { return device ? GF_GPU_BAD_ARGUMENT : GF_GPU_OK; }

int current_device(int *device) {
  *device = 0;
  return GF_GPU_OK;
}

int restore_device(int device) { return set_device(device); }
int check_device() { return GF_GPU_OK; }
int work_apart() { return GF_GPU_OK; }

int allocate(size_t bytes, void **address) {
  // As exact as alignment allows, so that AddressSanitizer sees what is beyond.
  if (posix_memalign(address, kAlignment, bytes ? bytes : 1)) return kNoMemory;
  memset(*address, 0xa5, bytes < kSoiled ? bytes : kSoiled);  // as on a GPU, what is there is of no use
  std::lock_guard<std::mutex> lock(mutex);
  allocated.emplace((uintptr_t)*address + bytes, (uintptr_t)*address);
  return GF_GPU_OK;
}

// As CUDA's, it waits for what is under way on the device, which may use this memory.
int release(void *address) {
  gf_emulator::synchronize_all();
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto i = allocated.begin(); i != allocated.end(); ++i)
      if (i->second == (uintptr_t)address) {
        allocated.erase(i);
        break;
      }
  }
  free(address);
  return GF_GPU_OK;
}

int allocate_host(size_t bytes, void **address) {
  return posix_memalign(address, kAlignment, bytes ? bytes : 1) ? kNoMemory : GF_GPU_OK;
}

int release_host(void *address) {
  gf_emulator::synchronize_all();
  free(address);
  return GF_GPU_OK;
}

int device_of(const void *address, int *device) {
  const uintptr_t a = (uintptr_t)address;
  std::lock_guard<std::mutex> lock(mutex);
  const auto i = allocated.upper_bound({a, ~(uintptr_t)0});
  *device = i != allocated.end() && i->second <= a ? 0 : -1;
  return GF_GPU_OK;
}

int copy(void *target, const void *source, size_t bytes, int kind, void *stream, int wait) {
  if (kind < GF_GPU_TO_DEVICE || kind > GF_GPU_WITHIN) return GF_GPU_BAD_ARGUMENT;
  gf_emulator::enqueue(on(stream), [=] { memcpy(target, source, bytes); });
  if (wait) gf_emulator::synchronize(on(stream));
  return GF_GPU_OK;
}

int fill(void *target, int byte, size_t bytes, void *stream) {
  gf_emulator::enqueue(on(stream), [=] { memset(target, byte, bytes); });
  return GF_GPU_OK;
}

int stream_create(void **stream) {
  *stream = gf_emulator::create_stream();
  return GF_GPU_OK;
}

int stream_destroy(void *stream) {
  gf_emulator::destroy_stream(on(stream));
  return GF_GPU_OK;
}

int stream_synchronize(void *stream) {
  gf_emulator::synchronize(on(stream));
  return GF_GPU_OK;
}

int stream_wait(void *stream, void *event) {
  gf_emulator::wait(on(stream), event_of(event));
  return GF_GPU_OK;
}

int event_create(void **event) {
  *event = gf_emulator::create_event();
  return GF_GPU_OK;
}

int event_destroy(void *event) {
  gf_emulator::destroy_event(event_of(event));
  return GF_GPU_OK;
}

int event_record(void *event, void *stream) {
  gf_emulator::record(event_of(event), on(stream));
  return GF_GPU_OK;
}

int event_done(void *event, int *done) {
  *done = gf_emulator::done(event_of(event));
  return GF_GPU_OK;
}

int event_synchronize(void *event) {
  gf_emulator::synchronize(event_of(event));
  return GF_GPU_OK;
}

int event_seconds(void *begin, void *end, double *seconds) {
  *seconds = gf_emulator::seconds_between(event_of(begin), event_of(end));
  return GF_GPU_OK;
}

int delay(double seconds, void *stream) {
  gf_emulator::enqueue(on(stream),
                       [=] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  return GF_GPU_OK;
}

int last_error() { return GF_GPU_OK; }

}  // namespace gradflow_gpu
