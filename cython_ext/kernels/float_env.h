// Callers may run with denormals flushed or another rounding mode (TensorFlow's threads do the former);
// the kernels' bytes must not depend on it. Put one of these at the top of every entry point.
#ifndef GF_KERNELS_FLOAT_ENV_H
#define GF_KERNELS_FLOAT_ENV_H

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

namespace gradflow {

class DefaultFloatEnv {
 public:
#if defined(__x86_64__)
  DefaultFloatEnv() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnv() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest even, no FTZ, no DAZ
  unsigned saved_;
#else
  DefaultFloatEnv() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnv() { fesetenv(&saved_); }

 private:
  fenv_t saved_;
#endif

 public:
  DefaultFloatEnv(const DefaultFloatEnv &) = delete;
  DefaultFloatEnv &operator=(const DefaultFloatEnv &) = delete;
};

}  // namespace gradflow

#endif
