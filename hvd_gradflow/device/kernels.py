"""The kernels every backend provides, declared once: names, arguments, meaning.

Arrays are one-dimensional, contiguous and float32 unless said otherwise; ``spec`` is what
:meth:`hvd_gradflow.codec.base.Codec.spec` returns; a payload is uint8, header included. All backends give
the same bytes (docs/wire-format.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel: its name, the names of its arguments in order, and what it does."""

    name: str
    arguments: tuple[str, ...]
    doc: str


KERNELS = (
    Kernel("max_encoded_size", ("spec", "n"), "Upper bound, in bytes, of a payload of n elements."),
    Kernel(
        "encode",
        ("spec", "x", "residual", "key", "first", "dtype", "out"),
        "Encode x (+ residual, which is then what was lost; or None) into out; return the bytes written. key "
        "feeds the stochastic rounding; first is x[0]'s global index; dtype (gf_dtype) goes into the header.",
    ),
    Kernel("decode", ("spec", "payload", "out"), "Check the payload, then decode it into out."),
    Kernel(
        "decode_add", ("spec", "payload", "acc"), "Check the payload, then add what it decodes to to acc."
    ),
    # Of codecs whose payloads carry steps; ends (uint64) and steps (float32) say which, up to which element.
    Kernel(
        "encode_stepped",
        ("spec", "ends", "steps", "x", "residual", "dtype", "out"),
        "Encode like encode, with these steps.",
    ),
    Kernel(
        "add_codes",
        ("spec", "ends", "steps", "payload", "acc"),
        "Check the payload, which must have these steps, then add its integers to acc.",
    ),
    Kernel(
        "encode_codes",
        ("spec", "ends", "steps", "codes", "dtype", "out"),
        "Encode integers, which decode to themselves times the steps; return the bytes written.",
    ),
    Kernel(
        "load_f32", ("source", "out"), "Convert a contiguous ArrayView to float32; return if all is finite."
    ),
    Kernel(
        "store_f32", ("src", "scale", "target"), "Write src * scale to a contiguous ArrayView, nearest even."
    ),
    Kernel(
        "sum_f32", ("out", "sources", "scale"), "out = (sources[0] + sources[1] + ...) * scale, in order."
    ),
    Kernel("sum_f64", ("out", "sources", "scale"), "The same for float64 arrays."),
    Kernel("energy", ("x",), "Sum of squares, in double and in a fixed order; non-finite elements count 0."),
    Kernel(
        "wavelet",
        ("x", "out", "name", "levels", "columns", "inverse", "finite"),
        "Write the wavelet coefficients of x to out, another array, or the reverse; their order, and what "
        "columns means: see wavelet.extents. With finite input, which the caller knows of, out is finite.",
    ),
    Kernel(
        "encode_indices",
        ("indices", "n", "out"),
        "Code of ascending int64 indices below n (docs/wire-format.md, Indices); return the bytes written.",
    ),
    Kernel(
        "decode_indices",
        ("code", "n", "out"),
        "Check the code of out.size indices, as long as code, then write them (int64) to out.",
    ),
    Kernel("crc32c", ("data", "crc"), "CRC32C of uint8 data, continuing from crc."),
    Kernel(
        "dither_key",
        ("seed", "rank", "name_hash", "sequence", "stage"),
        "Key of one payload's stochastic rounding.",
    ),
)

# Of a device (hvd_gradflow.device.device). Addresses are the device's, and of contiguous memory; all run on
# `stream` after the call has returned, allocate nothing, and give the same bytes as those above.
DEVICE_KERNELS = (
    Kernel(
        "encode",
        ("spec", "x", "residual", "n", "key", "first", "dtype", "out", "size", "scratch", "stream"),
        "Encode n elements of dtype (float32, float16 or bfloat16, converted to float32) at x, plus the "
        "float32 at residual (then what was lost; 0: none), into out; write the payload's bytes, a uint64, "
        "to size. key and first as for the backends; dtype goes into the header.",
    ),
    Kernel(
        "decode",
        ("spec", "payload", "nbytes", "out", "n", "add", "status", "scratch", "stream"),
        "Check a payload of nbytes bytes and write its gf_wire_status, an int32, to status; only where that "
        "is 0, decode it into n float32 at out, or add it to them.",
    ),
    # Of codecs with steps; ends (uint64) and steps (float32) are arrays of the host, as for the backends.
    Kernel(
        "encode_stepped",
        (
            *("spec", "ends", "steps", "x", "residual", "n", "dtype", "out", "size"),
            *("scratch", "stream"),
        ),
        "Encode like encode, with these steps.",
    ),
    Kernel(
        "add_codes",
        ("spec", "ends", "steps", "payload", "nbytes", "acc", "n", "status", "scratch", "stream"),
        "Check like decode, the steps too; then add the payload's integers to n float32 at acc.",
    ),
    Kernel(
        "encode_codes",
        ("spec", "ends", "steps", "codes", "n", "dtype", "out", "size", "scratch", "stream"),
        "Encode n integers (as float32), which decode to themselves times the steps.",
    ),
    Kernel(
        "statistics",
        ("x", "residual", "n", "out", "scratch", "stream"),
        "Write two doubles to out: what energy gives of n float32 at x, and at residual (0, if that is 0).",
    ),
    # pieces: the address of count records of memory.PIECE, in the device's memory; one launch, however many.
    Kernel(
        "gather",
        ("pieces", "count", "target", "n", "finite", "stream"),
        "Convert count tensors to float32 and put them into a bucket of n float32 at target, +0 between "
        "them; write 1 to finite, an int32, if all elements are, else 0.",
    ),
    Kernel(
        "scatter",
        ("source", "n", "scale", "pieces", "count", "stream"),
        "Write the bucket's elements times scale (float32) to the tensors, rounded to nearest even.",
    ),
)
