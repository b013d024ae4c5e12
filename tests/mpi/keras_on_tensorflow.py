"""Keras 3 on TensorFlow, on real ranks: graphs, sparse gradients, older optimizers, stock Horovod."""

from __future__ import annotations

import gc
import inspect

import horovod.tensorflow as stock
import keras
import numpy as np
import tensorflow as tf
from keras_common import (
    LOSS,
    SGD,
    alone_on_all_data,
    check,
    data,
    distance,
    main,
    network,
    raises,
    same,
    side,
    trained,
)

import hvd_gradflow.keras as hvd
import hvd_gradflow.tensorflow as hvd_tf
from hvd_gradflow.errors import ConfigError
from hvd_gradflow.reduce.route import Route
from hvd_gradflow.tensorflow import Compression


@check
def arguments_are_horovods():
    """In Horovod's order, so that a script which gives them by place means the same."""
    import horovod.keras
    import horovod.tensorflow.keras as stock_keras

    tape = ["DistributedGradientTape", "PartialDistributedGradientTape"]
    ops = ["allreduce", "grouped_allreduce", "broadcast_variables"]
    values = ["allreduce", "allgather", "broadcast", "load_model"]
    for theirs, ours, which in (
        (stock, hvd_tf, ["DistributedOptimizer", *tape, *ops]),
        (stock_keras, hvd, ["DistributedOptimizer", *values]),
        (horovod.keras, hvd, ["PartialDistributedOptimizer"]),
    ):
        for name in which:
            arguments = [
                [p.name for p in inspect.signature(getattr(module, name)).parameters.values()
                 if p.kind is p.POSITIONAL_OR_KEYWORD]
                for module in (theirs, ours)
            ]  # fmt: skip
            assert arguments[0] == arguments[1], (name, arguments)


@check
def traced_once():
    """fit over 50 steps traces its train function once."""
    model, traces = network(), []
    optimizer = hvd.DistributedOptimizer(SGD(0.1), compression=Compression.adaptive)
    apply = optimizer.apply

    def counted(*arguments, **options):
        traces.append(1)
        return apply(*arguments, **options)

    object.__setattr__(optimizer, "apply", counted)
    model.compile(optimizer, LOSS)
    x, y = data(50 * 4)
    for _ in range(2):
        model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert len(traces) == 1 and int(optimizer.iterations) == 100, (traces, optimizer.iterations)
    same(model)


@check
def several_steps_in_one_execution():
    model = trained(hvd.DistributedOptimizer(SGD(0.1), compression=Compression.none), steps_per_execution=4)
    same(model)
    assert distance(model, alone_on_all_data(SGD(0.1))) < 2e-3


@check
def eagerly_as_in_a_graph():
    models = [
        trained(hvd.DistributedOptimizer(SGD(0.1), compression=Compression.log4), run_eagerly=eagerly)
        for eagerly in (True, False)
    ]
    for model in models:
        same(model)
    assert distance(*models) < 0.3


@check
def xla_is_refused():
    model = network()
    model.compile(hvd.DistributedOptimizer(SGD(0.1), compression=Compression.log4), LOSS, jit_compile=True)
    x, y = data()
    with raises(Exception, "pass jit_compile=False to model.compile()"):
        model.fit(x, y, batch_size=16, epochs=1, verbose=0)


@check
def sparse_gradients():
    """An embedding in fit, as it is and as dense; and what the optimizer overwrites by its gradient."""
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.integers(0, 200, (64, 5)), rng.integers(0, 3, 64)
    results = []
    for compression, options in (
        (Compression.none, {}),
        (Compression.none, {"sparse_as_dense": True}),
        (Compression.int8, {}),
    ):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Embedding(200, 16),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(hvd.DistributedOptimizer(SGD(0.5), compression=compression, **options), LOSS)
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
        same(model)
        results.append(model.get_weights()[0])
    assert np.allclose(results[0], results[1], atol=1e-5)
    assert np.abs(results[0] - results[2]).max() < 0.05 * np.abs(results[0]).max()


@check
def variables_that_are_overwritten_by_their_gradients():
    """As in float8 training: the largest of all ranks' values, never compressed."""
    optimizer = hvd.DistributedOptimizer(SGD(0.1), compression=Compression.int8)
    scale = keras.Variable(np.ones(3, np.float32), name="scale")
    scale.overwrite_with_gradient = True
    kernel = keras.Variable(np.zeros((64, 64), np.float32), name="kernel")
    optimizer.build([scale, kernel])
    mine = tf.constant([1.0, 2.0, 3.0]) * (hvd.rank() + 1)
    optimizer.apply([mine, tf.ones((64, 64))], [scale, kernel])
    assert scale.numpy().tolist() == [1.0 * hvd.size(), 2.0 * hvd.size(), 3.0 * hvd.size()]
    assert np.allclose(kernel.numpy(), -0.1, rtol=1e-2)


@check
def a_training_loop_of_ones_own():
    """A tape, Keras variables, and a plain optimizer; inside tf.function."""
    model, optimizer = network(), SGD(0.1)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        tape = hvd_tf.DistributedGradientTape(tape, compression=Compression.none)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        )
        return loss

    optimizer.build(model.trainable_variables)
    hvd_tf.broadcast_variables([*model.variables, *optimizer.variables], 0)
    x, y = data()
    for _ in range(2):
        for i in range(0, 64, 16):
            step(x[i : i + 16], y[i : i + 16])
    same(model)
    assert distance(model, alone_on_all_data(SGD(0.1))) < 2e-3
    local = model.layers[1]
    with tf.GradientTape() as tape:
        loss = LOSS(y, model(x))
    tape = hvd_tf.PartialDistributedGradientTape(tape, compression=Compression.none, local_layers=[local])
    found = tape.gradient(loss, model.trainable_variables)
    equal = [
        len({g.numpy().tobytes() for g in everyone}) == 1
        for everyone in zip(*stock_gather(found), strict=True)
    ]
    assert equal == [True, True, False, False, True, True], equal


def stock_gather(tensors):
    return stock.allgather_object([tf.constant(t.numpy()) for t in tensors], name="gather")


@check
def an_optimizer_of_tensorflow_1():
    variable = tf.Variable(tf.zeros((64, 64)))
    factor = float(hvd.rank() + 1)
    optimizer = hvd_tf.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.5), compression=Compression.int8
    )
    pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(variable) * factor, [variable])
    optimizer.apply_gradients(pairs)
    mean = np.mean([r + 1.0 for r in range(hvd.size())])
    assert np.allclose(variable.numpy(), -0.5 * mean, rtol=1e-2), variable.numpy()[0, :3]


@check
def two_optimizers_in_one_function():
    """As in a GAN, by our reducer and by Horovod's own compressor."""
    from horovod.tensorflow.compression import Compression as Theirs

    for compression in (Compression.int8, Theirs.fp16):
        models = [network(), network()]
        optimizers = [hvd.DistributedOptimizer(SGD(0.1), compression=compression) for _ in models]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.build(model.trainable_variables)

        @tf.function
        def step(x, y, models=models, optimizers=optimizers):
            for model, optimizer in zip(models, optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = LOSS(y, model(x))
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        x, y = data(16)
        for _ in range(5):
            step(x, y)
        for model in models:
            same(model)


@check
def dropped_optimizers_leave_nothing():
    reducer = side.session.reducer_of(stock.global_process_set, Route())
    gc.collect()
    before = len(reducer.streams)
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(SGD(0.1), compression=Compression.int8)
        variable = keras.Variable(np.zeros((64, 64), np.float32))
        optimizer.apply([tf.ones((64, 64))], [variable])
        del optimizer, variable
        gc.collect()
    assert len(reducer.streams) <= before + 1, sorted(reducer.streams)


@check
def sparse_float64_is_summed_by_index():
    table = tf.Variable(tf.zeros((5, 3), tf.float64))
    for compression in (Compression.none, Compression.int8):
        indices = tf.constant([1, 1 + hvd.rank() % 2])
        slices = tf.IndexedSlices(tf.ones((2, 3), tf.float64), indices, tf.constant([5, 3]))
        found = hvd_tf.allreduce(slices, compression=compression, name="slices", op=stock.Sum)
        dense = tf.convert_to_tensor(found)
        assert np.allclose(dense.numpy()[1], 2.0 + 1.0 * (hvd.size() - 1)), dense
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1]))
    gradient = hvd_tf.DistributedGradientTape(tape).gradient(loss, table)
    assert gradient.indices.numpy().tolist() == [1] and np.allclose(gradient.values.numpy(), 2.0)


@check
def keras_2():
    """The package tf-keras."""
    import tf_keras

    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential(
        [tf_keras.layers.Dense(64, activation="relu", input_shape=(20,)), tf_keras.layers.Dense(3)]
    )
    for optimizer in (tf_keras.optimizers.Adam(0.01), tf_keras.optimizers.legacy.SGD(0.1)):
        wrapped = hvd.DistributedOptimizer(optimizer, compression=Compression.log4)
        model.compile(wrapped, tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = data()
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
        same(model)
    with raises(ConfigError, "distributed already"):
        hvd.DistributedOptimizer(wrapped)


@check
def stock_horovod_diverges_where_we_do_not():
    """Documents the fault of Horovod 0.28.1: under Keras 3 its optimizer trains without averaging."""
    import horovod.tensorflow.keras as stock_keras

    import hvd_gradflow.check as gradflow_check

    distributed = [stock_keras.DistributedOptimizer(SGD(0.1)), hvd.DistributedOptimizer(SGD(0.1))]
    weights = []
    for optimizer in distributed:
        model = trained(optimizer)
        weights.append({w.tobytes() for w in stock.allgather_object(model.get_weights()[0], name="weights")})
    assert len(weights[0]) == hvd.size(), "Horovod's own optimizer averages now: say so in the README"
    assert len(weights[1]) == 1
    assert gradflow_check.keras_is_unsynchronised() is True


if __name__ == "__main__":
    main()
