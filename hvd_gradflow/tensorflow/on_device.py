"""Tensors of TensorFlow on a GPU, for the reducer: which stay there, and how they are handed over.

A gradient is lent by DLPack and only read. While it is held, TensorFlow does not write to it either, as it
does to what nobody else holds (a variable, or an operation's input that becomes its output).

A result is a new tensor of TensorFlow's, made by ``Empty``, whose kernel allocates each time: nothing else
shares its memory yet, as it may that of a constant, of ``tf.zeros`` (small ones are constants) or of
``tf.identity``; TensorFlow's capsules are not read-only; and it is written before anybody is given it. Memory
of ours, exported to TensorFlow, would not do: TensorFlow lets go of a tensor when the work that reads it is
queued, not done, which is good enough for its own allocator only, and it cannot name its GPUs in DLPack.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_gradflow import config
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.reduce.place import device_of, say

_CPU, _CUDA, _ROCM = 1, 2, 10  # DLPack's device types


@dataclass(frozen=True)
class Site:
    """A device of TensorFlow's on which tensors are reduced.

    Attributes
    ----------
    name : str
        TensorFlow's.
    kind, index : int
        DLPack's, by which the reducer finds its own device.
    """

    name: str
    kind: int
    index: int

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.index

    def lend(self, tensor: tf.Tensor) -> Lent:
        """Return an eager tensor as the reducer takes it; a copy, if it lies elsewhere."""
        with tf.device(self.name):
            return Lent(self, tf.identity(tensor))

    def empty(self, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        """Return a new tensor, to be lent and written, once."""
        with tf.device(self.name):
            return tf.raw_ops.Empty(shape=tf.constant(shape, tf.int32), dtype=dtype, init=False)

    def tensor(self, value: Any, dtype: tf.DType) -> tf.Tensor:
        """Return anything as a tensor that lies here."""
        with tf.device(self.name):
            return tf.identity(tf.convert_to_tensor(value, dtype))


class Lent:
    """A tensor, by DLPack."""

    def __init__(self, site: Site, tensor: tf.Tensor) -> None:
        self._site, self._tensor = site, tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._site.kind, self._site.index

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Hand out the memory, when all work on it is done.

        TensorFlow takes no `stream` and tells of none of its own, so the host waits: for what is queued on
        the one stream that the device computes on. Copies between devices end before their operation does.
        What had this memory before, if it is new, was queued there too. This could not be tried: with the
        emulated device nothing is queued.
        """
        here, found = (tf.DeviceSpec.from_string(n) for n in (self._site.name, self._tensor.backing_device))
        if (found.device_type, found.device_index) != (here.device_type, here.device_index):
            raise UnsupportedError(
                f"TensorFlow keeps a tensor of {self._tensor.dtype.name} at {self._tensor.backing_device},"
                f" expected {self._site.name}; set GRADFLOW_DEVICE=host"
            )
        if not tf.config.experimental.get_synchronous_execution():  # operations themselves are queued
            raise UnsupportedError(
                "asynchronous eager execution, and gradients that are reduced on a GPU: choose it before the"
                " first step, or set GRADFLOW_DEVICE=host"
            )
        with tf.device(self._site.name):
            tf.raw_ops.SyncDevice()
        return tf.experimental.dlpack.to_dlpack(self._tensor)


def given(site: Site | None, place: Any, value: Any) -> Any:
    """Return what an operation was given as the reducer takes it: lent, where it has a `place` for it."""
    if site is None:
        return value  # a NumPy array
    return value.numpy() if place is None else site.lend(value)


def room(site: Site | None, place: Any, shape: Sequence[int], dtype: tf.DType) -> tuple[Any, Any]:
    """Return a new array for a result, and the same as the reducer takes it; see :func:`given`."""
    if site is None or place is None:
        made = np.empty(shape, dtype.as_numpy_dtype)
        return made, made
    tensor = site.empty(shape, dtype)
    return tensor, site.lend(tensor)


def site_of(names: Iterable[str]) -> Site | None:
    """Return where tensors on these devices are reduced; None: by the host.

    There they go from several devices, from one that the reducer has no kernels for, in graphs of
    TensorFlow 1, and where operations are executed asynchronously.
    """
    setting = config.load().device
    if setting == "host":
        return None
    if not tf.executing_eagerly() and not hasattr(tf.compat.v1.get_default_graph(), "captures"):
        return None
    found = set(names)
    if len(found) != 1 or not tf.config.experimental.get_synchronous_execution():
        return None
    name = found.pop()
    spec = tf.DeviceSpec.from_string(name)
    if spec.job not in (None, "localhost") or spec.device_index is None:
        return None
    if spec.device_type == "CPU":
        site = Site(name, _CPU, 0)
    elif spec.device_type == "GPU":
        ordinal = _ordinal(spec.device_index)
        if ordinal is None:
            return None
        site = Site(name, _ROCM if tf.test.is_built_with_rocm() else _CUDA, ordinal)
    else:
        return None
    device = device_of(site, setting)
    if device is None or (device.capabilities().dlpack_type, device.index) != (site.kind, site.index):
        return None
    return site


def default_device() -> str:
    """Return where TensorFlow computes in a graph that does not say."""
    devices = tf.config.list_logical_devices
    return (devices("GPU") or devices("CPU"))[0].name


def _ordinal(index: int) -> int | None:
    """Return which device of the runtime is TensorFlow's GPU of this index; None: the host is to be used.

    Its own DLPack does not say (tensorflow/tensorflow, issue 47866): it counts visible devices from 0, as
    after ``set_visible_devices(gpus[hvd.local_rank()], "GPU")``. They stay in the order of the runtime.

    Without memory growth TensorFlow takes nearly all memory when it starts, and leaves none for buckets and
    residuals.
    """
    visible = tf.config.get_visible_devices("GPU")
    if len(visible) != len(tf.config.list_logical_devices("GPU")):  # split, or one was left out
        return None
    ordinals = {int(d.name.rsplit(":", 1)[1]): d for d in visible}
    ordinal = sorted(ordinals)[index]
    if (
        not tf.config.experimental.get_memory_growth(ordinals[ordinal])
        and os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() != "true"
    ):
        say(
            "TensorFlow has taken all of its memory; call tf.config.experimental.set_memory_growth(gpu, True)"
            " first"
        )
        return None
    return ordinal
