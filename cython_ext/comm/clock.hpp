// Seconds of a clock that nobody sets.
#pragma once

#include <chrono>

namespace gf {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gf
