"""TensorFlow's and Keras' variables: what lies behind them, their names, their gradients to the reducer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.reduce import TensorSpec
from hvd_gradflow.reduce.layout import kind_of

DTYPES = {
    tf.float32: "float32",
    tf.float64: "float64",
    tf.float16: "float16",
    tf.bfloat16: "bfloat16",
}


def plain(variable: Any) -> Any:
    """Return what TensorFlow knows of a variable: the ``tf.Variable`` behind a Keras 3 variable."""
    if isinstance(variable, (tf.Variable, tf.Tensor)):
        return variable
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def key(variable: Any) -> Any:
    """Return what tells variables apart, in a dictionary."""
    return plain(variable).ref()


def name_of(variable: Any) -> str:
    """Return the path of a Keras 3 variable, or the name of a ``tf.Variable``, without its number."""
    path = getattr(variable, "path", None)
    if isinstance(path, str):
        return path
    name = getattr(plain(variable), "name", None) or "variable"
    return name.rsplit(":", 1)[0]


def spec_of(name: str, shape: Any, dtype: tf.DType, sparse: bool = False) -> TensorSpec:
    """Describe a gradient.

    Raises
    ------
    UnsupportedError
        For a dtype that no codec takes, or a shape that is not known.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"the gradient of {name!r} has dtype {dtype.name}, but gradients of {', '.join(DTYPES.values())}"
            " are carried: convert it, or make the variable not trainable"
        )
    shape = tf.TensorShape(shape)
    if not shape.is_fully_defined():
        raise UnsupportedError(f"the gradient of {name!r} has shape {shape}, which is not known beforehand")
    extents = tuple(shape.as_list())
    kind = "embedding" if sparse else kind_of(extents)
    return TensorSpec(name=name, shape=extents, dtype=DTYPES[dtype], kind=kind)
