// The steps of stepped codecs (deadzone): what every rank of a domain knows about them, and how they follow
// what is asked for. The text to it is "Steps" in docs/architecture.md.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol.hpp"

namespace gf {

// What the ranks agree on when no rank can know it from before: each tensor's energy in their inputs, added.
struct Agreement {
  bool fresh = false;  // some rank has no state for this unit, or one for other tensors or options
  std::vector<uint64_t> ends;
  std::vector<double> energies;
};

// The steps of one unit's tensors, in its order, for both encodings.
struct Steps {
  std::vector<uint64_t> ends;
  std::vector<float> first, second;
  bool exact = false;  // the sum of the codes goes on as it is

  // The segments of the elements from `begin` on, relative to it.
  std::vector<gf_segment> cut(const std::vector<float> &steps, uint64_t begin, uint64_t count) const;
};

// One unit name's memory, fed with reduced numbers only, so that it is the same on every rank.
class StepControl {
 public:
  // Whether this is about these tensors and options.
  bool about(const std::vector<uint64_t> &ends, const gf_codec_spec &codec) const;
  // False where an agreement is needed before there can be steps.
  bool knows(const std::vector<uint64_t> &ends, const gf_codec_spec &codec) const;
  void agree(const Agreement &agreement, const gf_codec_spec &codec);
  Steps steps(int nodes) const;
  // After a reduction: the sums of each tensor (a total that is NaN was not measured), and the bytes of all
  // payloads.
  void learn(const std::vector<Energy> &energies, uint64_t bytes, int nodes);

 private:
  struct Tensor {
    uint64_t end = 0;
    double energy = 0;    // of the nodes' parts of the gradient, added; 0: not known
    double multiple = 1;  // of the root mean square that follows from it
  };
  double asked() const;
  std::vector<Tensor> tensors_;
  double part_ = 0;  // running mean of the bytes sent over those without a codec
  gf_codec_spec codec_{};
};

}  // namespace gf
