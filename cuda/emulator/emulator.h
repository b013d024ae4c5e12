// The host compiler takes kernels with this in the place of a GPU's runtime: blocks run one after another,
// the threads of a block as fibers, which hand over where they wait for each other (barriers, shuffles,
// ballots). Deterministic, and a lane that does not come to a barrier is found. A stream is a thread of the
// host, so what is asynchronous on a GPU is so here. For tests only.
#ifndef GF_EMULATOR_H
#define GF_EMULATOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(n)

#define threadIdx (gf_emulator::here().thread)
#define blockIdx (gf_emulator::here().block)
#define blockDim (gf_emulator::here().threads)
#define gridDim (gf_emulator::here().blocks)

namespace gf_emulator {

struct Index {
  unsigned x;
};

struct Place {
  Index thread, block, threads, blocks;
};

class Stream;
class Event;

// Where the calling fiber is.
const Place &here();
// Waits for all threads of the block.
void block_barrier();
// Orders the memory accesses of threads of different blocks.
void fence();
uint32_t ballot(bool yes);
// Hands in `mine`, gets what lane `from` of the same warp handed in.
uint64_t exchange_bits(uint64_t mine, unsigned from);

template <typename T>
T exchange(T mine, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "one word at a time");
  uint64_t bits = 0;
  memcpy(&bits, &mine, sizeof mine);
  bits = exchange_bits(bits, from);
  memcpy(&mine, &bits, sizeof mine);
  return mine;
}

// Null is the default stream.
void enqueue(Stream *stream, std::function<void()> work);
void run_kernel(unsigned blocks, unsigned threads, const std::function<void()> &kernel);

template <typename Kernel>
void launch(unsigned blocks, unsigned threads, Stream *stream, Kernel kernel) {
  enqueue(stream, [=] { run_kernel(blocks, threads, kernel); });
}

// ---- The runtime. All functions return 0 but where memory runs out.
Stream *create_stream();
void synchronize_all();
void destroy_stream(Stream *stream);
void synchronize(Stream *stream);
Event *create_event();
void destroy_event(Event *event);
void record(Event *event, Stream *stream);
void wait(Stream *stream, Event *event);
bool done(Event *event);
void synchronize(Event *event);
double seconds_between(Event *begin, Event *end);

}  // namespace gf_emulator

inline void __syncthreads() { gf_emulator::block_barrier(); }
inline void __threadfence() { gf_emulator::fence(); }

template <typename T>
T atomicAdd(T *p, T v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <typename T>
T atomicOr(T *p, T v) {
  return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <typename T>
T atomicXor(T *p, T v) {
  return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);
}
template <typename T>
T atomicAnd(T *p, T v) {
  return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}

#endif
