// The codec topk: the largest values, and where they stand; docs/wire-format.md.
#ifndef GF_KERNELS_TOPK_H
#define GF_KERNELS_TOPK_H

#include "layout.h"

namespace gradflow {

size_t topk_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                   uint8_t *out);
// Checks the whole payload before it writes.
int topk_decode(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n, bool add);

}  // namespace gradflow

#endif
