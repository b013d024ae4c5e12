#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>

#include "../elements.h"
#include "../gf_api.h"
#include "crc32c.h"
#include "levels.h"

namespace gradflow {
namespace {

#include "no_simd.h"
#include "scalar_blocks.h"
#include "block_loops.h"
#include "sign1_blocks.h"
#include "deadzone_bits.h"
#include "index_codes.h"
#include "topk_blocks.h"
#include "deadzone_scalar.h"
#include "deadzone_portable.h"
#include "deadzone_blocks.h"
#include "range_coder.h"
#include "deadzone_entropy.h"
#include "code_entropy.h"
#include "array_loops.h"
#include "wavelet_loops.h"
#include "level_table.h"

}  // namespace

const Level kPortable = level_of("portable", crc32c_table);

}  // namespace gradflow
