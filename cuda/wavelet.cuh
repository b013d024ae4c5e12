// What the wavelet transforms share (wavelet.cu, haar.cu).
#ifndef GF_GPU_WAVELET_CUH
#define GF_GPU_WAVELET_CUH

#include "library.h"
#include "memory.cuh"

namespace gradflow_gpu {

GPU_FN float bounded(float v, bool finite) {
  constexpr float kMost = 3.40282346638528859812e+38F;
  if (!finite) return v;
  v = v > kMost ? kMost : v;
  return v < -kMost ? -kMost : v;
}

// haar along memory, of w.width elements. `rooms`: for bands on their way, half as many, and a quarter.
void haar_line(const gf_wavelet &w, const float *x, float *out, const int32_t *finite, float *const *rooms,
               gpuStream_t stream);

}  // namespace gradflow_gpu

#endif
