# What a codec is to compiled code (gf_api.h), for all modules alike.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "gf_api.h" nogil:
    ctypedef struct gf_codec_spec:
        uint16_t id
        uint8_t bits
        uint8_t rounding
        uint32_t block
        uint64_t seed
        uint64_t params[2]

    ctypedef struct gf_segment:
        uint64_t end
        float step
        uint32_t reserved


# Of a codec's spec(), unchecked.
cdef inline gf_codec_spec spec_of(dict spec) except *:
    cdef gf_codec_spec s
    s.id = spec["id"]
    s.bits = spec["bits"]
    s.rounding = spec["rounding"]
    s.block = spec["block"]
    s.seed = spec["seed"]
    s.params[0] = spec["params"][0]
    s.params[1] = spec["params"][1]
    return s
