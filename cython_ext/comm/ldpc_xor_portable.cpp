#include <stddef.h>
#include <stdint.h>

#include "ldpc_strips.hpp"

namespace gradflow {
namespace {

constexpr size_t kVector = 16;

#include "ldpc_xor_body.hpp"

}  // namespace

extern const StripLevel kPortableStrips;
const StripLevel kPortableStrips = {"portable", accumulate, run, gather, scatter};

}  // namespace gradflow
