// Bodies of deadzone: their tables, and the entropy stage around them. docs/wire-format.md.
#ifndef GF_KERNELS_DEADZONE_BODY_H
#define GF_KERNELS_DEADZONE_BODY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>

#include "layout.h"

namespace gradflow {

inline uint32_t dz_load(const uint8_t *p) {
  uint32_t u;
  memcpy(&u, p, sizeof u);
  return u;
}

inline void dz_store(uint8_t *p, uint32_t u) { memcpy(p, &u, sizeof u); }

// Bytes of a packed body in front of its groups' sizes.
inline size_t dz_front(const uint8_t *body) { return 4 + dz_load(body) * kDzSegmentBytes; }

// Whether the table of segments fits the body and n; the number of their groups.
bool dz_segments_valid(const uint8_t *body, size_t bytes, size_t n, size_t *groups);

// Puts the entropy coded form in the place of a packed body, if it is shorter; returns the bytes of what is
// there then.
size_t dz_squeeze(uint8_t *body, size_t bytes, size_t n);

// The packed body of an entropy coded one, or null where no encoder made that. `*packed_bytes` are not
// checked otherwise: what blocks say is the packed body's affair.
std::unique_ptr<uint8_t[]> dz_unsqueeze(const uint8_t *body, size_t bytes, size_t n, size_t *packed_bytes);

}  // namespace gradflow

#endif
