// How often a block cannot be decoded, by the structure of the code alone.
#ifndef GF_COMM_LDPC_TRIALS_HPP
#define GF_COMM_LDPC_TRIALS_HPP

#include <stdint.h>

#include "ldpc.hpp"

namespace gradflow {

struct LdpcTrials {
  uint64_t trials = 0;
  uint64_t too_few = 0;   // fewer than k symbols arrived: no code could do it
  uint64_t peeling = 0;   // those, and where peeling alone fails
  uint64_t failed = 0;    // those, and where elimination fails too
  uint64_t inactive = 0;  // symbols that peeling did not find, of all trials together
};

// Loses each symbol with probability threshold / 2^32, independently; the pattern follows from `random`
// alone. May throw bad_alloc.
LdpcTrials ldpc_trials(const LdpcCode &code, uint64_t threshold, uint64_t trials, uint64_t random);

}  // namespace gradflow

#endif
