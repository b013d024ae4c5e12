"""Arrays that claim to lie anywhere, by DLPack: what a device must take, and what it must refuse."""

from __future__ import annotations

import ctypes
import math
from typing import Any

_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY of dlpack.h
_CODES = {"float": 2, "bfloat": 4, "int": 0}  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Exported:
    """An array that DLPack hands out; it must outlive the capsules.

    Parameters
    ----------
    address : int
    shape : tuple of int
    place : tuple of int
        DLPack's device type and id.
    kind, bits : str, int
        Type of the elements: float, bfloat or int.
    strides : tuple of int, optional
        In elements.
    readonly : bool
    versioned : bool
        Whether it knows DLPack 1.0; otherwise it refuses ``max_version``.

    Attributes
    ----------
    streams : list
        What ``__dlpack__`` was given as `stream`.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        place: tuple[int, int],
        kind: str = "float",
        bits: int = 32,
        strides: tuple[int, ...] | None = None,
        readonly: bool = False,
        versioned: bool = True,
    ) -> None:
        self.streams: list[Any] = []
        self._place, self._versioned = place, versioned
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        packed = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self._strides = (ctypes.c_int64 * len(shape))(*(packed if strides is None else strides))
        pointer = ctypes.POINTER(ctypes.c_int64)
        shape_at, strides_at = ctypes.cast(self._shape, pointer), ctypes.cast(self._strides, pointer)
        fields = (address, *place, len(shape), _CODES[kind], bits, 1, shape_at, strides_at, 0)
        tensor = _Tensor(*fields)
        flags = _READ_ONLY if readonly else 0
        self._managed: Any = _Versioned(1, 0, None, None, flags, tensor) if versioned else _Managed(tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if options and not self._versioned:
            raise TypeError(f"unexpected arguments {sorted(options)}")
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        name = b"dltensor_versioned" if self._versioned else b"dltensor"
        return new(ctypes.addressof(self._managed), name, None)
