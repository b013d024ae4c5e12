"""Batch normalization over ranks, and states of variables, on TensorFlow."""

from __future__ import annotations

import tempfile

import keras
import numpy as np
import tensorflow as tf
from callbacks_common import (
    assert_equal,
    check,
    data,
    hvd,
    main,
    numpy,
    raises,
)

from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.tensorflow.elastic import TensorFlowState
from hvd_gradflow.tensorflow.sync_batch_norm import SyncBatchNormalization


@check
def tensorflow_state():
    value = tf.Variable([1.0 + hvd.rank(), 2.0])
    count = keras.Variable(5 + hvd.rank(), dtype="int32")
    state = TensorFlowState([value, count], step=hvd.rank())
    value.assign([0.0, 0.0])
    count.assign(0)
    state.restore()
    assert value.numpy().tolist() == [1.0 + hvd.rank(), 2.0] and int(count.numpy()) == 5 + hvd.rank()
    value.assign([3.0, 4.0 + hvd.rank()])
    state.step = 8 + hvd.rank()
    state.save()
    value.assign([0.0, 0.0])
    state.restore()
    assert value.numpy().tolist() == [3.0, 4.0 + hvd.rank()] and state.step == 8 + hvd.rank()
    state.sync()
    assert value.numpy().tolist() == [3.0, 4.0] and int(count.numpy()) == 5 and state.step == 8
    value.assign([9.0, 9.0])
    state.restore()
    assert value.numpy().tolist() == [3.0, 4.0]
    state.commit()
    with raises(UnsupportedError, "session"):
        TensorFlowState([value], session=object())


def normalized(layer, x, mask, scale, compiled):
    """Outputs, and gradients of a loss that weighs every output, of this rank's samples."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
            loss = tf.reduce_sum(y * y * y * scale)
        return y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

    # Shapes differ between ranks and are static in the graph: so are the names in it.
    return (tf.function(step) if compiled else step)(x)


@check
def batch_normalization():
    rank, size = hvd.rank(), hvd.size()
    counts = [3 + 4 * r for r in range(size)]
    cases = [((5,), -1, False, 0.0), ((4, 3, 5), -1, False, 0.0), ((5, 4), 1, False, 0.0),
             ((7, 5), -1, True, 0.0), ((4, 5), -1, False, 3000.0)]  # fmt: skip
    for number, (shape, axis, masked, offset) in enumerate(cases):
        random = np.random.default_rng(number)
        whole = (random.normal(size=(sum(counts), *shape)) * 2 + 1 + offset).astype("float32")
        scale = random.normal(size=whole.shape).astype("float32")
        mask = random.random(whole.shape[:-1]) < 0.6 if masked else None
        mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        for compiled in (False, True) if number in (0, 3) else (False,):
            one = keras.layers.BatchNormalization(axis=axis, momentum=0.5)
            ours = SyncBatchNormalization(axis=axis, momentum=0.5, name=f"sync{number}")
            for layer in (one, ours):
                layer.build((None, *shape))
                layer.gamma.assign(np.linspace(0.5, 2, 5))
                layer.beta.assign(np.linspace(-1, 1, 5))
            expected = normalized(one, tf.constant(whole), mask, scale, compiled)
            got = normalized(
                ours, tf.constant(whole[mine]), mask[mine] if masked else None, scale[mine], compiled
            )  # fmt: skip
            tolerance = 1e-2 if offset else 2e-4
            assert np.allclose(got[0], expected[0][mine], atol=tolerance), (number, "outputs")
            assert np.allclose(got[1], expected[1][mine], atol=10 * tolerance), (number, "gradient")
            for kind, a, b in zip(("gamma", "beta"), got[2:], expected[2:], strict=True):
                total = hvd.allreduce(a, op=hvd.Sum)
                assert np.allclose(total, b, rtol=1e-3, atol=40 * tolerance), (number, kind, total, b)
            for name in ("moving_mean", "moving_variance"):
                a, b = numpy([getattr(ours, name), getattr(one, name)])
                assert np.allclose(a, b, rtol=1e-4, atol=1e-4), (number, name, a, b)
            assert_equal([ours.moving_mean, ours.moving_variance])
            same = ours(whole[:2], training=False)
            assert np.allclose(same, one(whole[:2], training=False), atol=10 * tolerance)


@check
def batch_normalization_without_samples():
    # A rank whose samples are all masked, or that has none, and then all ranks.
    ours = SyncBatchNormalization(momentum=0.5)
    x = np.random.default_rng(0).normal(size=(6, 4, 5)).astype("float32")
    valid = np.full((6, 4), hvd.rank() == 0)
    y = ours(x, training=True, mask=valid)
    expected = (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-3)
    assert np.allclose(y, expected, atol=1e-4)
    y = ours(x[: 6 if hvd.rank() == 0 else 0], training=True)
    assert np.allclose(y, expected[: len(y)], atol=1e-4)
    y = ours(x, training=True, mask=np.zeros((6, 4), bool))
    assert np.isfinite(y).all() and all(np.isfinite(v).all() for v in numpy(ours.weights))


@check
def batch_normalization_in_fit():
    # Two layers, one of them used twice; the ranks' batches differ in size, the last one of each is smaller.
    shared = SyncBatchNormalization(momentum=0.5)
    first, second = keras.layers.Dense(6, name="first"), keras.layers.Dense(1, name="second")
    x = keras.Input((6,))
    y = second(SyncBatchNormalization(momentum=0.5)(shared(first(shared(x)))))
    model = keras.Model(x, y)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    assert not model.jit_compile
    samples, size = (22, 4) if hvd.rank() == 0 else (32, 6)
    inputs, targets = data(samples)
    history = model.fit(inputs, targets, batch_size=size, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert_equal([v for layer in (shared, model.layers[-2]) for v in layer.non_trainable_variables])
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        again = keras.saving.load_model(f"{folder}/model.keras")
    assert type(again.layers[1]) is SyncBatchNormalization
    assert np.allclose(again.predict(inputs, verbose=0), model.predict(inputs, verbose=0))
    copy = SyncBatchNormalization.from_config(
        SyncBatchNormalization(axis=1, epsilon=0.01, name="bn").get_config()
    )
    assert (copy.axis, copy.epsilon, copy.name) == (1, 0.01, "bn")
    with raises(ConfigError, "fused"):
        SyncBatchNormalization(fused=True)
    with raises(UnsupportedError, "jit_compile=False"):
        tf.function(lambda x: shared(x, training=True), autograph=False, jit_compile=True)(inputs)


if __name__ == "__main__":
    main()
