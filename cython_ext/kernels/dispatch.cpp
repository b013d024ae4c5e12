#include <string.h>

#include <atomic>

#include "levels.h"

namespace gradflow {
namespace {

struct Available {
  const Level *levels[4] = {nullptr, nullptr, nullptr, nullptr};
  Available() {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) levels[n++] = &kAvx512;
    if (avx2) levels[n++] = &kAvx2;
#endif
    levels[n] = &kPortable;
  }
};

const Available &available() {
  static const Available a;
  return a;
}

std::atomic<const Level *> current{nullptr};

}  // namespace

const Level *const *available_levels() { return available().levels; }

const Level &level() {
  const Level *l = current.load(std::memory_order_relaxed);
  if (!l) {
    l = available().levels[0];
    current.store(l, std::memory_order_relaxed);
  }
  return *l;
}

bool set_level(const char *name) {
  for (const Level *const *l = available_levels(); *l; ++l) {
    if (strcmp(name, "auto") == 0 || strcmp(name, (*l)->name) == 0) {
      current.store(*l, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace gradflow
