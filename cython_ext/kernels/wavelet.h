// Wavelet transforms, for callers outside the kernels.
#ifndef GF_KERNELS_WAVELET_H
#define GF_KERNELS_WAVELET_H

#include "float_env.h"
#include "levels.h"

namespace gradflow {

inline void transform_wavelet(const WaveletRun &run) {
  const DefaultFloatEnv env;
  level().wavelet(run);
}

}  // namespace gradflow

#endif
