#include "sign1.h"

#include "frame.h"
#include "levels.h"

namespace gradflow {

size_t sign1_encode(const gf_codec_spec &spec, int dtype, const float *x, float *residual, size_t n,
                    uint8_t *out) {
  uint8_t *const body = out + sizeof(Header);
  EncodeRun run = {};
  run.x = x;
  run.residual = residual;
  run.n = n;
  run.block = spec.block;
  run.scales = body;
  run.codes = body + sign1_table_bytes(spec, n);
  bool nonfinite = false;
  const size_t bytes = sign1_table_bytes(spec, n) + level().encode_sign1(run, &nonfinite);
  Header h = new_header(spec, dtype, n);
  if (nonfinite) h.flags |= kFlagNonfinite;
  return seal_payload(h, bytes, level().crc32c(0, body, bytes), out);
}

int sign1_decode(const gf_codec_spec &spec, const uint8_t *in, size_t bytes, float *out, size_t n, bool add) {
  Header h;
  const size_t table = sign1_table_bytes(spec, n);
  const int status = check_frame(spec, in, bytes, n, table, kFlagNonfinite | kFlagStochastic, &h);
  if (status != GF_WIRE_OK) return status;
  DecodeRun run = {};
  run.scales = in + sizeof h;
  run.codes = run.scales + table;
  run.out = out;
  run.n = n;
  run.block = spec.block;
  run.add = add;
  bool nonfinite = false;
  if (!level().check_sign1(run, (size_t)h.bytes - table, &nonfinite)) return GF_WIRE_CONTENT;
  if (nonfinite != ((h.flags & kFlagNonfinite) != 0)) return GF_WIRE_CONTENT;
  level().decode_sign1(run);
  return GF_WIRE_OK;
}

}  // namespace gradflow
