// The pseudo-random number generator of RFC 5170, section 5.7: Park and Miller's minimal standard.
#ifndef GF_COMM_LDPC_PRNG_HPP
#define GF_COMM_LDPC_PRNG_HPP

#include <stdint.h>

namespace gradflow {

class MinimalStandard {
 public:
  // 1 to 2^31 - 2.
  explicit MinimalStandard(uint32_t seed) : state_(seed) {}
  uint32_t next() {
    state_ = (uint32_t)(16807ull * state_ % kModulus);
    return state_;
  }
  // Below `bound`. The RFC divides in double; for bounds below 2^21 the integers give the same.
  uint32_t below(uint32_t bound) { return (uint32_t)((uint64_t)bound * next() / kModulus); }

 private:
  static constexpr uint64_t kModulus = 0x7FFFFFFF;
  uint32_t state_;
};

}  // namespace gradflow

#endif
