"""The networks of the Keras scripts: those of :mod:`training.models`, and a recommender."""

from __future__ import annotations

from typing import Any

from .keras_backend import keras

layers = keras.layers


def digits_net() -> keras.Model:
    """Two convolutions and two dense layers for 8 x 8 images: 151,306 parameters."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            _head(10),
        ]
    )


def small_net() -> keras.Model:
    """Three convolutions with batch norm and two dense layers for 28 x 28 images: about 0.8 M parameters."""

    def stage(outputs: int) -> list[keras.Layer]:
        convolution = layers.Conv2D(outputs, 3, padding="same", use_bias=False)
        return [convolution, _norm(), layers.ReLU(), layers.MaxPooling2D(2)]

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *stage(16),
            *stage(32),
            *stage(96),
            layers.Flatten(),
            layers.Dense(896, activation="relu"),
            _head(10),
        ]
    )


def plain_net() -> keras.Model:
    """Two convolutions and two dense layers, without batch norm, for 28 x 28 images: 824,458 parameters."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            _head(10),
        ]
    )


def resnet18() -> keras.Model:
    """ResNet-18 (He et al. 2016, table 1) with a first convolution of 3 x 3: 11.2 M parameters."""

    def convolution(x: Any, outputs: int, kernel: int, stride: int) -> Any:
        return _norm()(layers.Conv2D(outputs, kernel, stride, padding="same", use_bias=False)(x))

    images = keras.Input((28, 28, 1))
    x = layers.ReLU()(convolution(images, 64, 3, 1))
    for outputs, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            path = layers.ReLU()(convolution(x, outputs, 3, stride))
            path = convolution(path, outputs, 3, 1)
            same = stride == 1 and x.shape[-1] == outputs
            skip = x if same else convolution(x, outputs, 1, stride)
            x = layers.ReLU()(layers.Add()([path, skip]))
    return keras.Model(images, _head(10)(layers.GlobalAveragePooling2D()(x)))


def recommender(users: int, films: int, width: int = 32) -> keras.Model:
    """Ratings of pairs of a user and a film: the dot product of their vectors, and two dense layers of both.

    The gradients of the vectors are sparse: only the rows of a batch's users and films.
    """
    pairs = keras.Input((2,), dtype="int32")
    user = layers.Embedding(users, width, name="users")(pairs[:, 0])
    film = layers.Embedding(films, width, name="films")(pairs[:, 1])
    hidden = layers.Dense(64, activation="relu")(layers.Concatenate()([user, film]))
    middle = keras.initializers.Constant(3.5)  # stars, of 0.5 to 5
    rest = layers.Dense(1, bias_initializer=middle, dtype="float32")(hidden)
    return keras.Model(pairs, layers.Add(dtype="float32")([layers.Dot(1)([user, film]), rest]))


def _norm() -> keras.Layer:
    """Batch norm with the constants of PyTorch's."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)


def _head(outputs: int) -> keras.Layer:
    """Logits, in float32 under every policy."""
    return layers.Dense(outputs, dtype="float32")


FASHION_MODELS = {"small": small_net, "plain": plain_net, "resnet18": resnet18}
