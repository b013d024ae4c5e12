#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../elements.h"
#include "../gf_api.h"
#include "crc32c.h"
#include "levels.h"

namespace gradflow {
namespace {

#include "no_simd.h"
#include "scalar_blocks.h"
#include "block_loops.h"
#include "deadzone_bits.h"
#include "deadzone_scalar.h"
#include "deadzone_portable.h"
#include "deadzone_blocks.h"
#include "deadzone_entropy.h"
#include "array_loops.h"

}  // namespace

const Level kPortable = {"portable",
                         encode_uniform,
                         decode_uniform,
                         encode_log4,
                         decode_log4,
                         encode_fp16,
                         decode_fp16,
                         encode_bf16,
                         decode_bf16,
                         encode_none,
                         decode_none,
                         encode_deadzone,
                         check_deadzone,
                         decode_deadzone,
                         squeeze_deadzone,
                         unsqueeze_deadzone,
                         codes_valid,
                         crc32c_table,
                         load_f32,
                         store_f32,
                         sum_f32,
                         sum_f64,
                         energy};

}  // namespace gradflow
