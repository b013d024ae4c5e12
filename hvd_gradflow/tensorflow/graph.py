"""Python in TensorFlow's graphs: what is called when a step reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.tensorflow.on_device import Site


def refuse_xla(what: str) -> None:
    """Raise UnsupportedError while XLA compiles the function being traced: it cannot call the host."""
    graph = tf.compat.v1.get_default_graph()
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(graph):
        raise UnsupportedError(
            f"{what} inside a function that XLA compiles, which cannot reach other processes: pass"
            " jit_compile=False to model.compile() or tf.function()"
        )


def host_op(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    name: str,
    shapes: Sequence[Any] = (),
) -> list[tf.Tensor]:
    """Return what `function` makes of `inputs` (NumPy arrays in, NumPy arrays out).

    Eagerly it is called at once. In a graph it is a stateful operation: TensorFlow runs those of a
    ``tf.function`` one after another as they were written, so all ranks run them in the same order. A graph
    of TensorFlow 1 has no such rule; there they are chained here.
    """
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    if tf.executing_eagerly():
        results = function(*(x.numpy() for x in inputs))
        results = results if isinstance(results, (list, tuple)) else [results]
        return [tf.convert_to_tensor(r, dtype) for r, dtype in zip(results, dtypes, strict=True)]
    graph = tf.compat.v1.get_default_graph()
    before = [] if hasattr(graph, "captures") else graph.get_collection_ref(_CHAIN)
    with tf.device("CPU:0"), tf.control_dependencies(before[-1:]):
        results = tf.numpy_function(function, inputs, list(dtypes), stateful=True, name=name)
    results = results if isinstance(results, (list, tuple)) else [results]
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    if not hasattr(graph, "captures"):
        before[:] = [results[0].op]
    return list(results)


def op_at(
    site: Site | None,
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    name: str,
    shapes: Sequence[Any],
) -> list[tf.Tensor]:
    """Return what `function` makes of `inputs`: on a `site` (eager tensors in, tensors or NumPy arrays out).

    Without a site it is :func:`host_op`. With one it runs in the same order with its operations; no integers
    of 32 bits, which TensorFlow keeps on the host. Gradients end at the results, as they do at those of
    :func:`host_op`.

    A graph's operation is placed on the device, where TensorFlow hands it what lies there, and copies there
    what does not. Only the emulated device has tried it: its name is "CPU:0".
    """
    if site is None:
        return host_op(function, inputs, dtypes, name, shapes)
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    if tf.executing_eagerly():
        results = function(*inputs)
        results = results if isinstance(results, (list, tuple)) else [results]
        return [site.tensor(r, dtype) for r, dtype in zip(results, dtypes, strict=True)]
    with tf.device(site.name):
        results = tf.py_function(function, inputs, list(dtypes), name=name)
        results = [tf.stop_gradient(r) for r in results]
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return results


_CHAIN = "hvd_gradflow_last"
