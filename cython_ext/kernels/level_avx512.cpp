#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>

#include "../gf_api.h"
#include "crc32c.h"
#include "levels.h"

// Headers of others stay above: what follows is compiled for this level only, and all of it is local.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,pclmul,sse4.2,popcnt,bmi,bmi2")

#include "../elements.h"

namespace gradflow {
namespace {

#include "scalar_blocks.h"
#include "avx2_blocks.h"
#include "block_loops.h"
#include "sign1_blocks.h"
#include "deadzone_bits.h"
#include "index_codes.h"
#include "topk_blocks.h"
#include "deadzone_scalar.h"
#include "avx2_deadzone.h"
#include "deadzone_blocks.h"
#include "range_coder.h"
#include "deadzone_entropy.h"
#include "code_entropy.h"
#include "array_loops.h"
#include "wavelet_loops.h"
#include "crc32c_x86.h"
#include "level_table.h"

}  // namespace

const Level kAvx512 = level_of("avx512", crc32c);

}  // namespace gradflow

#endif
