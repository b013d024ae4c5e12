// XORs of symbols by lists that the host has made: the erasure code of docs/ldpc.md. A byte depends on bytes
// at the same place of other symbols only, so each thread has a word's width of all of them.
#include "library.h"
#include "memory.cuh"

namespace gradflow_gpu {
namespace {

constexpr unsigned kThreads = 128;

struct Rows {
  const uint8_t *in;
  uint8_t *out;
  size_t in_pitch, out_pitch, words;
};

template <typename Word>
GPU_FN void xor_list(const gf_xor_lists &lists, const Rows &rows, unsigned list, size_t word) {
  Word sum = 0;
  for (uint32_t e = lists.begins[list]; e < lists.begins[list + 1]; ++e)
    sum ^= ((const Word *)(rows.in + lists.entries[e] * rows.in_pitch))[word];
  ((Word *)(rows.out + lists.targets[list] * rows.out_pitch))[word] = sum;
}

// As many blocks for each list as its words need.
template <typename Word>
__global__ void __launch_bounds__(kThreads) xor_kernel(gf_xor_lists lists, Rows rows, unsigned each) {
  const size_t word = (size_t)(blockIdx.x % each) * kThreads + threadIdx.x;
  if (word < rows.words) xor_list<Word>(lists, rows, blockIdx.x / each, word);
}

// A list may read what those before it have written: a thread goes through all of them.
template <typename Word>
__global__ void __launch_bounds__(kThreads) ordered_xor_kernel(gf_xor_lists lists, Rows rows) {
  const size_t word = (size_t)blockIdx.x * kThreads + threadIdx.x;
  if (word >= rows.words) return;
  for (unsigned list = 0; list < lists.count; ++list) xor_list<Word>(lists, rows, list, word);
}

template <typename Word>
int launch(const gf_xor_lists &lists, Rows rows, size_t bytes, bool ordered, gpuStream_t stream) {
  rows.words = bytes / sizeof(Word);
  const size_t each = (rows.words + kThreads - 1) / kThreads;
  if (ordered) {
    GPU_LAUNCH(ordered_xor_kernel<Word>, each, kThreads, stream, lists, rows);
  } else {
    if (each * lists.count > INT32_MAX) return GF_GPU_BAD_ARGUMENT;
    GPU_LAUNCH(xor_kernel<Word>, each * lists.count, kThreads, stream, lists, rows, (unsigned)each);
  }
  return last_error();
}

}  // namespace

int xor_lists(const gf_xor_lists *lists, const uint8_t *in, size_t in_pitch, uint8_t *out, size_t out_pitch,
              size_t bytes, int ordered, void *stream) {
  if (bytes > in_pitch || bytes > out_pitch || bytes / sizeof(uint8_t) > INT32_MAX)
    return GF_GPU_BAD_ARGUMENT;
  if (!lists->count || !bytes) return GF_GPU_OK;
  const Rows rows = {in, out, in_pitch, out_pitch, 0};
  // The widest words that every symbol begins and ends with.
  const uintptr_t ends = (uintptr_t)in | (uintptr_t)out | in_pitch | out_pitch | bytes;
  if (ends % 8 == 0) return launch<uint64_t>(*lists, rows, bytes, ordered, (gpuStream_t)stream);
  if (ends % 4 == 0) return launch<uint32_t>(*lists, rows, bytes, ordered, (gpuStream_t)stream);
  return launch<uint8_t>(*lists, rows, bytes, ordered, (gpuStream_t)stream);
}

}  // namespace gradflow_gpu
