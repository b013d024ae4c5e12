# Codecs that exist in Python only: what the engine calls for them. Part of _engine.pyx.

cdef object _floats(const float *data, size_t n):
    return np.asarray(<float[:n]> <float *> data) if n else np.zeros(0, np.float32)


cdef object _codec(void *ctx, const gf_codec_spec *spec):
    return (<dict> ctx)[_key(spec.id, spec.bits, spec.rounding, spec.block, spec.seed, spec.params[0], spec.params[1])]


def _key(*fields):
    return fields


def _check_bound(codec, made, n):
    bound = codec.max_encoded_size(n)
    if made > bound:
        raise errors.WireError(f"codec {codec.name!r} made {made} bytes of {n} elements, "
                               f"more than its own bound {bound}")


cdef size_t _max_encoded_size(void *ctx, const gf_codec_spec *spec, size_t n) noexcept with gil:
    try:
        return _codec(ctx, spec).max_encoded_size(n)
    except BaseException as error:
        _report(error)
        return <size_t> -1  # fits nowhere


cdef size_t _encode(void *ctx, const gf_codec_spec *spec, const float *x, float *residual, size_t n, uint64_t key,
                    uint64_t first, uint8_t *out) noexcept with gil:
    cdef const uint8_t[::1] payload
    try:
        codec = _codec(ctx, spec)
        payload = codec.encode(_floats(x, n), residual=_floats(residual, n) if residual != NULL else None,
                               key=key, first=first)
        _check_bound(codec, payload.shape[0], n)
        memcpy(out, &payload[0], payload.shape[0])
        return payload.shape[0]
    except BaseException as error:
        _report(error)
        return 0


cdef int _decode(void *ctx, const gf_codec_spec *spec, const uint8_t *data, size_t size, float *out,
                 size_t n) noexcept with gil:
    try:
        result = _codec(ctx, spec).decode(np.asarray(<const uint8_t[:size]> <uint8_t *> data))
        if result.size != n:
            return GF_WIRE_COUNT
        if n:
            _floats(out, n)[:] = result
        return GF_WIRE_OK
    except BaseException as error:
        _report(error)
        return GF_WIRE_CONTENT


cdef int _decode_add(void *ctx, const gf_codec_spec *spec, const uint8_t *data, size_t size, float *acc,
                     size_t n) noexcept with gil:
    try:
        _codec(ctx, spec).decode_add(np.asarray(<const uint8_t[:size]> <uint8_t *> data), _floats(acc, n))
        return GF_WIRE_OK
    except BaseException as error:
        _report(error)
        return GF_WIRE_CONTENT


cdef tuple _steps(const gf_segment *segments, size_t count):
    return (np.array([segments[i].end for i in range(count)], np.uint64),
            np.array([segments[i].step for i in range(count)], np.float32))


cdef size_t _encode_stepped(void *ctx, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                            const float *x, float *residual, size_t n, uint8_t *out) noexcept with gil:
    cdef const uint8_t[::1] payload
    try:
        ends, steps = _steps(segments, count)
        codec = _codec(ctx, spec)
        payload = codec.encode_stepped(_floats(x, n), ends, steps, residual=_floats(residual, n))
        _check_bound(codec, payload.shape[0], n)
        memcpy(out, &payload[0], payload.shape[0])
        return payload.shape[0]
    except BaseException as error:
        _report(error)
        return 0


cdef int _add_codes(void *ctx, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                    const uint8_t *data, size_t size, float *acc, size_t n) noexcept with gil:
    try:
        ends, steps = _steps(segments, count)
        _codec(ctx, spec).add_codes(np.asarray(<const uint8_t[:size]> <uint8_t *> data), ends, steps,
                                    _floats(acc, n))
        return GF_WIRE_OK
    except BaseException as error:
        _report(error)
        return GF_WIRE_CONTENT


cdef size_t _encode_codes(void *ctx, const gf_codec_spec *spec, const gf_segment *segments, size_t count,
                          const float *codes, size_t n, uint8_t *out) noexcept with gil:
    cdef const uint8_t[::1] payload
    try:
        ends, steps = _steps(segments, count)
        codec = _codec(ctx, spec)
        payload = codec.encode_codes(_floats(codes, n), ends, steps)
        _check_bound(codec, payload.shape[0], n)
        memcpy(out, &payload[0], payload.shape[0])
        return payload.shape[0]
    except BaseException as error:
        _report(error)
        return 0


cdef void _sum_spec(void *ctx, const gf_codec_spec *spec, gf_codec_spec *of_sums) noexcept with gil:
    of_sums[0] = spec[0]
    try:
        found = _codec(ctx, spec).for_sums().spec()
        of_sums.bits, of_sums.rounding = found["bits"], found["rounding"]
        of_sums.block, of_sums.seed = found["block"], found["seed"]
        of_sums.params[0], of_sums.params[1] = found["params"]
    except BaseException as error:
        _report(error)


cdef void _report(error) noexcept:
    events.warn("a codec written in Python failed: %s: %s", type(error).__name__, error)
