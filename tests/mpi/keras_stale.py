"""``max_staleness`` in Keras and on tapes: ``keras_stale.py [check ...]``."""

from __future__ import annotations

from collections import deque

import numpy as np
from keras_common import (
    LOSS,
    SGD,
    TENSORFLOW,
    Compression,
    after_every_step,
    check,
    data,
    hvd,
    keras,
    main,
    network,
    raises,
    same,
    start,
    trained,
)

from hvd_gradflow.errors import ConfigError, UnsupportedError

BATCH, SAMPLES, EPOCHS = 16, 64, 2


def gradients_of(model, x, y):
    """One device's gradients, by the backend's own means."""
    if TENSORFLOW:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x))
        return [g.numpy() for g in tape.gradient(loss, model.trainable_weights)]
    model.zero_grad()
    LOSS(y, model(x)).backward()
    return [v.value.grad.detach().numpy().copy() for v in model.trainable_weights]


def late(optimizer, k, epochs=EPOCHS):
    """The same training in one process: k steps of zeros, then the mean gradients of k steps ago."""
    model = network()
    optimizer.build(model.trainable_weights)
    parts, under_way = [data(SAMPLES, r) for r in range(hvd.size())], deque()
    for _ in range(epochs):
        for i in range(0, SAMPLES, BATCH):
            each = [gradients_of(model, x[i : i + BATCH], y[i : i + BATCH]) for x, y in parts]
            under_way.append([sum(g) / hvd.size() for g in zip(*each, strict=True)])
            due = under_way.popleft() if len(under_way) > k else [np.zeros_like(g) for g in under_way[0]]
            due = [keras.ops.convert_to_tensor(g) for g in due]
            optimizer.apply(due, model.trainable_weights)
    return model


def near(a, b, tolerance=1e-4):
    flat = [np.concatenate([w.ravel() for w in m.get_weights()]) for m in (a, b)]
    gap = np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0] - start())
    return gap < tolerance


@check
def the_trajectory_is_that_of_late_gradients():
    def momentum():
        return SGD(0.1, momentum=0.9)

    def adamw():
        return keras.optimizers.AdamW(0.01, weight_decay=0.1)

    for make, k in ((momentum, 2), (adamw, 1)):
        model = trained(hvd.DistributedOptimizer(make(), max_staleness=k), EPOCHS)
        same(model)
        assert near(model, late(make(), k)), k
        assert not near(model, late(make(), k - 1), 1e-2)


@check
def equal_weights_under_codecs():
    adaptive = Compression.adaptive(warmup=2, window=2, target_ratio=5.0)
    for choice in (Compression.log4, adaptive):
        model = network()
        opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=choice, max_staleness=1)
        model.compile(opt, LOSS)
        x, y = data(SAMPLES)
        first = model.evaluate(x, y, verbose=0)
        model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[after_every_step(model)])
        assert model.evaluate(x, y, verbose=0) < 0.9 * first
        assert any(np.abs(r).max() > 0 for r in opt.residual_state().values())


@check
def accumulated_gradients():
    """Of two steps of two passes each, the first one's gradients are applied."""
    found = []
    for k in (0, 1):
        model, options = network(), {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
        model.compile(hvd.DistributedOptimizer(SGD(0.1), max_staleness=k, **options), LOSS)
        x, y = data(SAMPLES)
        samples = 2 * BATCH * (k + 1)
        model.fit(x[:samples], y[:samples], batch_size=BATCH, verbose=0, shuffle=False)
        same(model)
        found.append(model)
    assert near(*found)


@check
def refused():
    with raises(ConfigError, "max_staleness=-2"):
        hvd.DistributedOptimizer(SGD(0.1), max_staleness=-2)
    scaled = keras.optimizers.LossScaleOptimizer(SGD(0.1))
    with raises(UnsupportedError, "max_staleness > 0 with a LossScaleOptimizer"):
        hvd.DistributedOptimizer(scaled, max_staleness=1)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with raises(UnsupportedError, "max_staleness > 0 with a LossScaleOptimizer"):
            trained(hvd.DistributedOptimizer(SGD(0.1), max_staleness=1), 1)
    finally:
        keras.config.set_dtype_policy(before)


@check
def tapes():
    """Eagerly and in a graph: the mean gradients of k steps ago, zeros before; one set of variables."""
    import tensorflow as tf

    import hvd_gradflow.tensorflow as hvd_tf

    def gradients(variables, scale, k, used=2):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v) * scale for v in variables[:used]])
        tape = hvd_tf.DistributedGradientTape(tape, max_staleness=k)
        return tape.gradient(loss, variables)

    for call in (gradients, tf.function(gradients)):
        for k in (1, 2):
            variables = [tf.Variable(tf.zeros((40, 40))), tf.Variable(tf.zeros(5))]
            for t in range(5):
                scale = tf.constant(t + 1.0 + 2 * hvd.rank())
                wanted = 0.0 if t < k else t - k + 1 + hvd.size() - 1
                for g in call(variables, scale, k):
                    assert np.all(g.numpy() == wanted), (k, t, g.numpy().ravel()[0], wanted)
    with raises(UnsupportedError, "has a gradient in some steps and none in others"):
        for used in (2, 2, 1, 1):
            gradients(variables, tf.constant(1.0), 1, used)
    table = tf.Variable(tf.zeros((9, 4)), name="table")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 2]))
    with raises(UnsupportedError, "'table", "sparse"):
        hvd_tf.DistributedGradientTape(tape, max_staleness=1).gradient(loss, [table])


if __name__ == "__main__":
    main()
