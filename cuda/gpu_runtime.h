// What CUDA, HIP and the emulator call by different names. Kernels are written for logical warps of 32 lanes:
// on hardware with 64 lanes two of them share one. All 32 lanes take part in every function of a warp below.
#ifndef GF_GPU_RUNTIME_H
#define GF_GPU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#if defined(GF_GPU_EMULATED)
#include "emulator/emulator.h"
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif

#include "../cython_ext/elements.h"

#define GPU_FN static inline __device__

namespace gradflow_gpu {

constexpr unsigned kWarp = 32;

GPU_FN unsigned lane() { return threadIdx.x % kWarp; }

#if defined(GF_GPU_EMULATED)

// Of arguments all are copied when the kernel is put on the stream.
#define GPU_LAUNCH(kernel, blocks, threads, stream, ...) \
  gf_emulator::launch((unsigned)(blocks), threads, stream, [=] { kernel(__VA_ARGS__); })

template <typename T>
GPU_FN T shuffle(T v, unsigned from) {
  return gf_emulator::exchange(v, from);
}
template <typename T>
GPU_FN T shuffle_xor(T v, unsigned mask) {
  return gf_emulator::exchange(v, lane() ^ mask);
}
GPU_FN uint32_t ballot(bool yes) { return gf_emulator::ballot(yes); }
GPU_FN uint64_t load_shared_state(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
GPU_FN void store_shared_state(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
GPU_FN unsigned count_bits(uint32_t v) { return (unsigned)__builtin_popcount(v); }
GPU_FN unsigned lowest_bit(uint32_t v) { return (unsigned)__builtin_ctz(v); }

#else

#define GPU_LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<(unsigned)(blocks), threads, 0, stream>>>(__VA_ARGS__)

#if defined(__HIPCC__)
template <typename T>
GPU_FN T shuffle(T v, unsigned from) {
  return __shfl(v, (int)from, (int)kWarp);
}
template <typename T>
GPU_FN T shuffle_xor(T v, unsigned mask) {
  return __shfl_xor(v, (int)mask, (int)kWarp);
}
// __ballot speaks of all lanes of the hardware's warp, which are 32 or 64.
GPU_FN uint32_t ballot(bool yes) { return (uint32_t)(__ballot(yes) >> (__lane_id() & 32u)); }
#else
template <typename T>
GPU_FN T shuffle(T v, unsigned from) {
  return __shfl_sync(0xffffffffu, v, (int)from);
}
template <typename T>
GPU_FN T shuffle_xor(T v, unsigned mask) {
  return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}
GPU_FN uint32_t ballot(bool yes) { return __ballot_sync(0xffffffffu, yes); }
#endif
// A word that blocks tell each other by: read and written as a whole, never from a stale cache.
GPU_FN uint64_t load_shared_state(const uint64_t *p) { return *(const volatile uint64_t *)p; }
GPU_FN void store_shared_state(uint64_t *p, uint64_t v) { *(volatile uint64_t *)p = v; }
GPU_FN unsigned count_bits(uint32_t v) { return (unsigned)__popc(v); }
GPU_FN unsigned lowest_bit(uint32_t v) { return (unsigned)__ffs((int)v) - 1u; }

#endif

}  // namespace gradflow_gpu

// ---- The runtime's functions, by CUDA's names without its prefix
#if !defined(GF_GPU_EMULATED)
#if defined(__HIPCC__)
#define GPU_NAME(x) hip##x
#define GPU_HOST_ALLOC(address, bytes) hipHostMalloc(address, bytes, hipHostMallocDefault)
#define GPU_HOST_FREE hipHostFree
#else
#define GPU_NAME(x) cuda##x
#define GPU_HOST_ALLOC(address, bytes) cudaHostAlloc(address, bytes, cudaHostAllocDefault)
#define GPU_HOST_FREE cudaFreeHost
#endif
typedef GPU_NAME(Stream_t) gpuStream_t;
typedef GPU_NAME(Event_t) gpuEvent_t;
#else
typedef gf_emulator::Stream *gpuStream_t;
typedef gf_emulator::Event *gpuEvent_t;
#endif

#endif
