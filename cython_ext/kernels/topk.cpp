#include "topk.h"

#include <math.h>

#include "frame.h"
#include "levels.h"

namespace gradflow {

size_t topk_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                   uint8_t *out) {
  uint8_t *const body = out + sizeof(Header);
  EncodeRun run = {};
  run.x = x;
  run.residual = residual;
  run.n = n;
  run.codes = body;
  const double keep = ceil(topk_ratio_of(spec) * (double)n);
  bool nonfinite = false;
  size_t bytes = level().encode_topk(run, keep < (double)n ? (size_t)keep : n, &nonfinite);
  // What a decoder allocates is bounded by what arrives.
  for (; bytes < n / GF_TOPK_ELEMENTS_PER_BYTE; ++bytes) body[bytes] = 0;
  Header h = new_header(spec, dtype, n);
  if (nonfinite) h.flags |= kFlagNonfinite;
  return seal_payload(h, bytes, level().crc32c(0, body, bytes), out);
}

int topk_decode(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n, bool add) {
  Header h;
  const int flags = kFlagNonfinite | kFlagStochastic;
  const int status = check_frame(spec, in, bytes, n, GF_TOPK_FRONT_BYTES + 1, flags, &h);
  if (status != GF_WIRE_OK) return status;
  const uint8_t *const body = in + sizeof h;
  bool nonfinite = false;
  if (!level().check_topk(body, (size_t)h.bytes, n, &nonfinite)) return GF_WIRE_CONTENT;
  if (nonfinite != ((h.flags & kFlagNonfinite) != 0)) return GF_WIRE_CONTENT;
  level().decode_topk(body, (size_t)h.bytes, out, n, add);
  return GF_WIRE_OK;
}

}  // namespace gradflow
