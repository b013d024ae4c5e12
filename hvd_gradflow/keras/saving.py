"""``load_model``: a saved model whose optimizer is distributed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvd_gradflow.errors import ConfigError
from hvd_gradflow.keras.optimizer import DistributedOptimizer
from hvd_gradflow.tensorflow.choice import Compression


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Load a model that Keras saved, and distribute its optimizer, with the state that was saved.

    Parameters
    ----------
    filepath : str or path
        As of ``keras.models.load_model``.
    custom_optimizers : sequence of type, optional
        Classes of optimizers that Keras does not know.
    custom_objects : mapping, optional
        Other classes and functions that Keras does not know, by name.
    compression : Choice, or one of Horovod's own compressors
        As of :func:`DistributedOptimizer`.
    legacy_opts : bool
        Must be False: Keras 3 has no legacy optimizers.
    **options
        Further arguments of :func:`DistributedOptimizer`.

    Raises
    ------
    ConfigError
        If `legacy_opts` is set, or the model was saved without an optimizer.
    """
    import keras

    if legacy_opts:
        raise ConfigError("legacy_opts=True: Keras 3 has no legacy optimizers; load the model with tf-keras")
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(
            f"the model in {filepath!s} was saved without an optimizer: compile it with"
            " hvd.DistributedOptimizer(...)"
        )
    if not hasattr(model.optimizer, "gradflow"):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
