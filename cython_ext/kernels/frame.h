// Payloads as a whole: header, checks, and the choice of the codec.
#ifndef GF_KERNELS_FRAME_H
#define GF_KERNELS_FRAME_H

#include "layout.h"

namespace gradflow {

// Writes a header (as `new_header` makes it, with the flags that are known by now) in front of a body of
// `body` bytes that is complete; `crc_body` is its CRC32C. Returns the payload's bytes.
size_t seal_payload(Header h, size_t body, uint32_t crc_body, uint8_t *out);
// Everything about a header that does not depend on the body.
int check_header(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n, Header *header);
// Of a codec whose bodies have from `least` to max_body_bytes: everything that is to be checked but the
// body's content. `flags` are those that there may be.
int check_frame(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, size_t n, size_t least, int flags,
                Header *header);

size_t encode_payload(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                      uint64_t key, uint64_t first, uint8_t *out);
int decode_payload(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n,
                   bool add);

const gf_codec_ops *find_codec(uint16_t id);
const gf_api *api();

}  // namespace gradflow

#endif
