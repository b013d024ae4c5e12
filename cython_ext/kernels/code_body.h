// The entropy stage around bodies of codes of fixed width (docs/wire-format.md).
#ifndef GF_KERNELS_CODE_BODY_H
#define GF_KERNELS_CODE_BODY_H

#include <stddef.h>
#include <stdint.h>

#include <memory>

#include "layout.h"

namespace gradflow {

// Puts the entropy coded form in the place of a body, if it is shorter; returns the bytes of what is there
// then.
size_t squeeze_body(const gf_codec_spec &spec, const Layout &layout, uint8_t *body, size_t n);

// The codes, in their width, of an entropy coded body whose scales have been checked; null where no encoder
// made that.
std::unique_ptr<uint8_t[]> unsqueeze_body(const gf_codec_spec &spec, const Layout &layout,
                                          const uint8_t *body, size_t bytes, size_t n);

}  // namespace gradflow

#endif
