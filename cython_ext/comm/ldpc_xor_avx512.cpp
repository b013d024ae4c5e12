#if defined(__x86_64__)

#include <stddef.h>
#include <stdint.h>

#include "ldpc_strips.hpp"

// Headers of others stay above: what follows is compiled for this level only, and all of it is local.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")

namespace gradflow {
namespace {

constexpr size_t kVector = 64;

#include "ldpc_xor_body.hpp"

}  // namespace

extern const StripLevel kAvx512Strips;
const StripLevel kAvx512Strips = {"avx512", accumulate, run, gather, scatter};

}  // namespace gradflow

#endif
