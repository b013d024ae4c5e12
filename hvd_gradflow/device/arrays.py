"""Arrays of any framework, seen as an address, a type, a shape and strides; bfloat16 included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Values of gf_dtype in cython_ext/gf_api.h; they stand in wire headers.
FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = 1, 2, 3, 4
DTYPE_NAMES = {FLOAT32: "float32", FLOAT64: "float64", FLOAT16: "float16", BFLOAT16: "bfloat16"}
DTYPES = {name: code for code, name in DTYPE_NAMES.items()}
ITEM_SIZES = {FLOAT32: 4, FLOAT64: 8, FLOAT16: 2, BFLOAT16: 2}
# bfloat16 is unknown to NumPy; its bits are handed out instead.
_NUMPY_TYPES = {FLOAT32: "<f4", FLOAT64: "<f8", FLOAT16: "<f2", BFLOAT16: "<u2"}

# (type code, bits) of DLPack (dlpack.h: kDLFloat is 2, kDLBfloat is 4).
_DLPACK_DTYPES = {(2, 32): FLOAT32, (2, 64): FLOAT64, (2, 16): FLOAT16, (4, 16): BFLOAT16}
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
HOST = (1, 3, 11)  # DLPack's device types of host memory: kDLCPU, kDLCUDAHost, kDLROCMHost
_DLPACK_DEVICES = {2: "cuda", 10: "rocm", 8: "metal", 7: "vulkan", 12: "ext", 14: "oneapi"}
_DLPACK_SAME = {13: 2}  # kDLCUDAManaged lies on a CUDA device
_UNREADABLE = (
    "expected host memory. Copy it there first (torch: x.cpu()), or use a device that reads it"
    " (hvd_gradflow.device.devices; `gradflow check` lists them)"
)
_EXPECTED = "expected float16, bfloat16, float32 or float64"


@dataclass(eq=False, slots=True)  # not frozen: that makes each cost a microsecond, and there are many
class ArrayView:
    """Where the elements of an array lie; not to be changed.

    Attributes
    ----------
    address : int
        Of the element with all indices zero.
    size : int
        Number of elements.
    dtype : int
        `gf_dtype`: one of ``FLOAT32``, ``FLOAT64``, ``FLOAT16``, ``BFLOAT16``.
    dtype_name : str
        The same in words.
    shape : tuple of int
    strides : tuple of int
        Bytes to the next element in each dimension, as in NumPy; may be empty where `contiguous`.
    itemsize : int
        Bytes of an element.
    contiguous : bool
        Whether the elements lie in C order without gaps.
    readonly : bool
    owner : object
        Keeps the memory alive.
    device : str
        In whose memory the elements lie, if that is not the host's; then only its kernels can use `address`.
    """

    address: int
    size: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    readonly: bool
    owner: Any
    device: str = ""

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype]

    @property
    def itemsize(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        _on_host(self)
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": _NUMPY_TYPES[self.dtype],
            "data": (self.address, self.readonly),
            "strides": None if self.contiguous else self.strides,
        }

    def numpy(self) -> np.ndarray:
        """Return the same memory as a NumPy array; bfloat16 appears as the uint16 of its bits."""
        _on_host(self)
        if self.size == 0:
            return np.empty(self.shape, _NUMPY_TYPES[self.dtype])
        return np.asarray(self)


def view(x: Any) -> ArrayView:
    """Look at an array without copying it.

    Parameters
    ----------
    x : array
        A NumPy array or scalar, an object with the buffer protocol, or one with DLPack (a torch or TensorFlow
        tensor, ...) in host memory; float16, bfloat16, float32 or float64, any shape, any strides. A torch
        tensor that requires a gradient is looked at as if detached.

    Returns
    -------
    ArrayView

    Raises
    ------
    TypeError
        For anything else: other types, sparse tensors, memory of a GPU.
    """
    if isinstance(x, ArrayView):
        return _on_host(x)
    if isinstance(x, (np.ndarray, np.generic)):
        return _of_numpy(np.asarray(x))
    if hasattr(x, "__dlpack__"):
        return _of_dlpack(x)
    try:
        array = np.asarray(memoryview(x))
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(
            f"{kind(x)} is no array: expected NumPy, the buffer protocol or DLPack in host memory"
        ) from error
    return _of_numpy(array)


def contiguous(x: Any) -> ArrayView:
    """Return a view of `x` in C order without gaps; of a packed copy, where `x` is not so itself."""
    v = view(x)
    if v.contiguous:
        return v
    packed = np.ascontiguousarray(v.numpy())
    strides = tuple(packed.strides)
    return ArrayView(packed.ctypes.data, v.size, v.dtype, v.shape, strides, True, False, packed)


def empty(shape: tuple[int, ...], dtype: int) -> np.ndarray:
    """Return a new array of a `gf_dtype`; bfloat16 as the uint16 of its bits."""
    return np.empty(shape, _NUMPY_TYPES[dtype])


def _on_host(x: ArrayView) -> ArrayView:
    """The view itself, unless it would let the host read a device's address."""
    if x.device:
        raise TypeError(f"a view of memory of {x.device}: {_UNREADABLE}")
    return x


def kind(x: Any) -> str:
    """Return what an object is, for messages."""
    return f"{type(x).__module__}.{type(x).__name__}"


def _of_numpy(array: np.ndarray) -> ArrayView:
    dtype = DTYPES.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        raise TypeError(f"array of dtype {array.dtype!s}: {_EXPECTED}, in native byte order")
    interface = array.__array_interface__ if array.dtype.kind == "f" else None
    address = interface["data"][0] if interface else array.ctypes.data
    return ArrayView(
        address,
        array.size,
        dtype,
        array.shape,
        array.strides,
        bool(array.flags.c_contiguous),
        not array.flags.writeable,
        array,
    )


def _of_dlpack(x: Any) -> ArrayView:
    x = _dense(x)
    place, index = place_of(x)
    if place not in HOST:
        raise TypeError(f"{kind(x)} on {_place_name(place, index)}: {_UNREADABLE}")
    return _look(x)


def view_on(x: Any, place: int, index: int, name: str, stream: int) -> ArrayView:
    """Look at an array in a device's memory, of which only the device can use the address.

    Parameters
    ----------
    x : object with DLPack
    place, index : int
        DLPack's device type and id where it must lie.
    name : str
        What messages call that place.
    stream : int
        Handed to ``__dlpack__``, as DLPack counts streams: the array's framework makes it wait for its own
        work. -1: nobody waits.

    Raises
    ------
    TypeError
        If it is no array of the four float types, or lies elsewhere.
    """
    if isinstance(x, ArrayView) and x.device == name:
        return x
    if place in HOST:
        return view(x)
    if isinstance(x, (np.ndarray, np.generic)) or not hasattr(x, "__dlpack__"):
        raise TypeError(f"{kind(x)} is in the host's memory: expected an array on {name}, by DLPack")
    x = _dense(x)
    found, at = place_of(x)
    if (_DLPACK_SAME.get(found, found), at) != (place, index):
        raise TypeError(f"{kind(x)} on {_place_name(found, at)}: expected one on {name}; copy it there first")
    seen = _look(x, stream=stream)
    seen.device = name
    return seen


def _dense(x: Any) -> Any:
    """The tensor itself, without its gradient's graph; sparse ones are refused."""
    if getattr(x, "requires_grad", False) and hasattr(x, "detach"):
        x = x.detach()
    layout = getattr(x, "layout", None)  # torch's sparse tensors say so here, in words better than DLPack's
    if layout is not None and str(layout).startswith("torch.sparse"):
        raise TypeError(f"{kind(x)} of layout {layout}: expected a dense tensor (pass its values)")
    return x


def _look(x: Any, **options: Any) -> ArrayView:
    from hvd_gradflow.device.native import kernels

    capsule = _capsule(x, options)
    address, _, code, bits, lanes, shape, strides, readonly = kernels().dlpack_fields(capsule)
    dtype = _DLPACK_DTYPES.get((code, bits)) if lanes == 1 else None
    if dtype is None:
        raise TypeError(f"{kind(x)} of {_DLPACK_KINDS.get(code, f'type {code}:')}{bits}: {_EXPECTED}")
    size = 1
    packed: list[int] = []
    for extent in reversed(shape):
        packed.insert(0, size)
        size *= extent
    strides = tuple(packed) if strides is None else strides
    gapless = size == 0 or all(e == 1 or s == p for e, s, p in zip(shape, strides, packed))
    item = ITEM_SIZES[dtype]
    return ArrayView(
        address, size, dtype, shape, tuple(s * item for s in strides), gapless, readonly, capsule
    )


def place_of(x: Any) -> tuple[int, int]:
    """Return DLPack's device type and id; the host's for what does not know DLPack.

    Raises
    ------
    TypeError
        If it is on a device that DLPack does not know.
    """
    if not hasattr(x, "__dlpack_device__"):
        return HOST[0], 0
    try:
        place, index = x.__dlpack_device__()
        return int(place), int(index)
    except (BufferError, RuntimeError, ValueError, NotImplementedError) as error:
        raise TypeError(f"{kind(x)} is on no device that DLPack knows: {error}") from error


def _place_name(place: int, index: int) -> str:
    if place in HOST:
        return "the host"
    name = _DLPACK_DEVICES.get(_DLPACK_SAME.get(place, place), "a device")
    return f"{name}:{index} (DLPack device type {place})"


def _capsule(x: Any, options: dict[str, Any]) -> Any:
    try:
        try:
            return x.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # an exporter from before DLPack 1.0
            return x.__dlpack__(**options)
    except TypeError as error:
        if not options:
            raise
        raise TypeError(
            f"{kind(x)}: its __dlpack__() takes no stream, so nobody knows when it is written: {error}"
        ) from error
    except (BufferError, RuntimeError, ValueError, NotImplementedError) as error:
        raise TypeError(f"{kind(x)} does not hand out its memory by DLPack: {error}") from error
