// The codec sign1: signs, and a scale for each block; docs/wire-format.md.
#ifndef GF_KERNELS_SIGN1_H
#define GF_KERNELS_SIGN1_H

#include <stddef.h>
#include <stdint.h>

#include "../gf_api.h"

namespace gradflow {

size_t sign1_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                    uint8_t *out);
// Checks the whole payload before it writes.
int sign1_decode(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n, bool add);

}  // namespace gradflow

#endif
