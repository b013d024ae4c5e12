// The codec deadzone, whose payloads carry the steps they were made with; docs/wire-format.md.
#ifndef GF_KERNELS_DEADZONE_H
#define GF_KERNELS_DEADZONE_H

#include <stddef.h>
#include <stdint.h>

#include "../gf_api.h"

namespace gradflow {

// With a step of its own: the options' multiple of the root mean square of x.
size_t deadzone_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                       uint8_t *out);
size_t deadzone_encode_stepped(const gf_codec_spec &spec, int dtype, const gf_segment *segments, size_t count,
                               const float *x, float *residual, size_t n, uint8_t *out);
size_t deadzone_encode_codes(const gf_codec_spec &spec, int dtype, const gf_segment *segments, size_t count,
                             const float *codes, size_t n, uint8_t *out);
// Both check the whole payload before they write.
int deadzone_decode(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n,
                    bool add);
int deadzone_add_codes(const gf_codec_spec &spec, const gf_segment *segments, size_t count, const uint8_t *in,
                       size_t bytes, float *acc, size_t n);

}  // namespace gradflow

#endif
