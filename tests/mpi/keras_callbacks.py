"""Callbacks for Keras 3, on several ranks with data of their own: ``keras_callbacks.py [check ...]``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
from callbacks_common import (
    TENSORFLOW,
    Rates,
    assert_different,
    assert_equal,
    at,
    check,
    data,
    fit,
    hvd,
    line,
    main,
    network,
    numpy,
    raises,
    recorder,
)

from hvd_gradflow.analyze import recording
from hvd_gradflow.errors import ConfigError, MismatchError
from hvd_gradflow.keras import DistributedOptimizer, callbacks


@check
def broadcast_after_first_batch():
    # On TensorFlow the optimizer has no variables before a step: weights are equal before it, all after it.
    optimizers = [
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.optimizers.Adam(0.001 * (1 + hvd.rank())),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 2.0 ** (10 + hvd.rank())),
    ]
    for optimizer in optimizers:
        model = network(optimizer, traced=optimizer is optimizers[0])
        assert_different([model.layers[0].kernel])
        ours = callbacks.BroadcastGlobalVariablesCallback(0)
        roots = hvd.broadcast_object(numpy(model.weights), root_rank=0)
        seen = []

        def begin(batch, logs=None, model=model, roots=roots, ours=ours, seen=seen):
            if batch == 0:
                seen.append(ours.broadcast_done)
                for mine, root in zip(numpy(model.weights), roots, strict=True):
                    assert np.array_equal(mine, root)

        def end(batch, logs=None, model=model, optimizer=optimizer, ours=ours, seen=seen):
            if batch == 0 and TENSORFLOW:
                assert ours.broadcast_done
                assert_equal(model.weights)
                assert_equal(optimizer.variables, "optimizer")
            elif batch == 1:
                assert_different([model.layers[0].kernel])  # a plain optimizer: each goes its way

        fit(model, ours, at(on_train_batch_begin=begin, on_train_batch_end=end), samples=8)
        assert seen == [not TENSORFLOW]
        assert len(optimizer.variables) > 4


@check
def broadcast_before_first_batch():
    # From root 1; built on all ranks: nothing is left for later, and each rank steps from equal state.
    model = network()
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(5 + hvd.rank())
    for velocity in model.optimizer.momentums:
        velocity.assign(keras.ops.ones_like(velocity) * (1 + hvd.rank()))
    ours = callbacks.BroadcastGlobalVariablesCallback(hvd.size() - 1)
    done = []

    def begin(batch, logs=None):
        if batch == 0:
            done.append(ours.broadcast_done)
            assert_equal([*model.weights, *model.optimizer.variables])
            assert float(numpy(model.optimizer.momentums)[0].max()) == hvd.size()

    def restore(logs=None):  # a checkpoint that one rank reads, by a callback that is listed later
        if hvd.rank() == hvd.size() - 1:
            model.layers[0].bias.assign(np.full(8, 7.0))

    fit(model, ours, at(on_train_begin=restore, on_train_batch_begin=begin), samples=4)
    assert done == [True]
    assert int(numpy([model.optimizer.iterations])[0]) == 5 + hvd.size()

    if not TENSORFLOW:
        return
    # Built on one rank only, as after loading a checkpoint there.
    model = network()
    if hvd.rank() == 0:
        model.optimizer.build(model.trainable_variables)
    ours = callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, ours, samples=4)
    assert_equal([*model.weights, *model.optimizer.variables])


@check
def random_states_stay():
    model = network(dropout=True)
    seeds = [v for v in model.variables if "seed" in v.path]
    assert len(seeds) == 1

    def begin(batch, logs=None):
        assert_equal(model.weights)
        assert_different(seeds, "random states")

    calls = [callbacks.BroadcastGlobalVariablesCallback(0), at(on_train_batch_begin=begin)]
    fit(model, *calls, samples=4)
    assert_different(seeds, "random states")


@check
def local_variables_stay():
    for given in ("keras", "backend"):
        model = network(keras.optimizers.Adam(0.01))
        local = model.get_layer("last").trainable_variables
        own = [v if given == "keras" else v.value for v in local]
        ours = callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own[:1])
        ours.register_local_var(own[1])
        model.optimizer.build(model.trainable_variables)
        for variable in model.optimizer.variables[2:]:
            variable.assign(keras.ops.ones_like(variable) * (1 + hvd.rank()))
        local[1].assign(np.full(1, hvd.rank()))
        ours.set_model(model)
        ours.on_train_batch_begin(0)
        assert ours.broadcast_done
        kept = {id(v) for v in local}
        assert_equal([v for v in model.weights if id(v) not in kept])
        assert_different(local, "local variables")
        slots = {v.path: v for v in model.optimizer.variables}
        mine = [v for path, v in slots.items() if "last_" in path]
        assert len(mine) == 4
        assert_different(mine, "moments of local variables")
        assert_equal([v for path, v in slots.items() if "last_" not in path])
    with raises(ConfigError, "no variable"):
        callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1.0])


@check
def different_models_are_an_error():
    model = network(width=8 + hvd.rank())
    with raises(MismatchError, "weights", "(6, 8)", "(6, 9)", "local_variables"):
        fit(model, callbacks.BroadcastGlobalVariablesCallback(0), samples=4)


@check
def gradients_are_recorded_while_it_fits():
    directory = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0, name="directory")
    model = network(DistributedOptimizer(keras.optimizers.SGD(0.1)))
    fit(model, samples=4)  # streams that are open already are recorded, too
    fit(model, callbacks.GradientAnalysisCallback(directory, every=2), samples=16)
    fit(model, samples=4)
    hvd.allgather_object(0, name="recorded")
    if hvd.rank() == 0:
        (stream,), remarks = recording.read(directory)
        assert remarks == [] and stream.ranks == hvd.size()
        assert sorted(stream.reduced) == [0, 1, 2, 3]
        assert all(sorted(ranks) == list(range(hvd.size())) for ranks in stream.local.values())
        assert sorted(layer.elements for layer in stream.layers) == sorted(
            w.size for w in numpy(model.trainable_weights)
        )
    with raises(ConfigError, "every=0: expected at least 1 step"):
        callbacks.GradientAnalysisCallback(directory, every=0)


@check
def metrics_are_averaged():
    model = network(metrics=["mae"])
    before, after = [], []
    x, y = data(4)
    first = at(on_epoch_end=lambda epoch, logs: before.append(dict(logs)))
    last = at(on_epoch_end=lambda epoch, logs: after.append(dict(logs)))
    calls = [first, callbacks.MetricAverageCallback(), last]
    history = fit(model, *calls, samples=8, epochs=2, validation_data=(x, y)).history
    ranks = hvd.allgather_object(before, name="before")
    assert len(ranks[0]) == 2
    for epoch in range(2):
        assert sorted(after[epoch]) == ["loss", "mae", "val_loss", "val_mae"]
        for name, value in after[epoch].items():
            expected = np.mean([r[epoch][name] for r in ranks])
            assert ranks[0][epoch][name] != ranks[1][epoch][name]
            assert abs(value - expected) < 1e-12 * abs(expected), name
            assert history[name][epoch] == value

    ours = callbacks.MetricAverageCallback()
    rank = hvd.rank()
    logs = {
        "b": np.float32(rank),
        "a": 10 * rank,
        "text": "7",
        "flag": bool(rank),
        "many": np.full(3, rank),
        "no": None,
    }
    ours.on_epoch_end(0, logs)
    middle = (hvd.size() - 1) / 2
    assert logs["a"] == 10 * middle and logs["b"] == middle
    assert logs["text"] == "7" and logs["flag"] is bool(rank) and logs["no"] is None
    assert np.array_equal(logs["many"], np.full(3, rank))
    ours.on_epoch_end(0, None)
    ours.on_epoch_end(0, {})


@check
def other_metrics_are_an_error():
    model = network(metrics=["mae"] if hvd.rank() else [])
    with raises(MismatchError, "'mae' only on ranks [1]"):
        fit(model, callbacks.MetricAverageCallback(), samples=4)
    logs = {"loss": 1.0, "of0": 1.0} if hvd.rank() == 0 else {"loss": 1.0, "of1": 2.0}
    with raises(MismatchError, "'of0' only on ranks [0]", "'of1' only on ranks [1]"):
        callbacks.MetricAverageCallback().on_epoch_end(0, logs)


@check
def warmup():
    # 3 batches an epoch, 2 epochs of 3 warmed up; their number told by fit, or by the caller.
    size = hvd.size()
    for steps in (None, 3):
        model = line(keras.optimizers.SGD(0.8))
        rates = Rates(model)
        ours = callbacks.LearningRateWarmupCallback(0.8, 2, steps_per_epoch=steps, verbose=1)
        logs = fit(model, ours, recorder(rates), samples=12, epochs=3).history["lr"]
        expected = []
        for batch in range(9):
            epoch = (min(batch, 5) + 1) / 3
            expected.append(0.8 / size * (epoch * (size - 1) / 2 + 1))
        assert np.allclose(rates, expected, rtol=1e-6), (rates, expected)
        assert np.allclose(logs, expected[2::3], rtol=1e-6)
        assert abs(rates[-1] - 0.8) < 1e-6
    x, y = data()
    endless = ((x[:4], y[:4]) for _ in iter(int, 1))
    with raises(ConfigError, "steps_per_epoch"):
        line(keras.optimizers.SGD(0.8)).fit(
            endless, callbacks=[callbacks.LearningRateWarmupCallback(0.8)], verbose=0, shuffle=False
        )


@check
def schedules():
    cases = [
        ({"multiplier": 0.5, "start_epoch": 1}, lambda b: 0.5 ** (b // 3 - 1) if b >= 3 else 1),
        ({"multiplier": lambda e: 1 / (1 + e), "end_epoch": 2}, lambda b: 1 / (1 + min(b // 3, 1))),
        ({"multiplier": lambda e: 1 + e, "staircase": False, "start_epoch": 1, "end_epoch": 3},
         lambda b: 1 if b < 3 else 1 + min(b, 8) / 3),
        ({"multiplier": 0.5, "staircase": False}, lambda b: 0.5 ** (b / 3)),
    ]  # fmt: skip
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.3))
    for (options, factor), optimizer in zip(cases, [scaling, None, None, None], strict=True):
        model = line(optimizer or keras.optimizers.SGD(0.3))
        rates = Rates(model)
        ours = callbacks.LearningRateScheduleCallback(0.3, **options)
        logs = fit(model, ours, recorder(rates), samples=12, epochs=4).history["lr"]
        expected = [0.3 * factor(b) for b in range(12)]
        assert np.allclose(rates, expected, rtol=1e-6), (rates, expected)
        assert np.allclose(logs, expected[2::3], rtol=1e-6)
    with raises(ConfigError, "initial_lr"):
        callbacks.LearningRateScheduleCallback(None, 1.0)
    decaying = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    with raises(ConfigError, "schedule of its own"):
        fit(line(decaying), callbacks.LearningRateScheduleCallback(0.1, 1.0))


@check
def momentum_correction():
    # By Horovod's rule: in the batch in which the rate changes, momentum is multiplied by new / old.
    rule = {"multiplier": lambda e: 1 + e, "staircase": False}
    x, y = data()
    for correct in (True, False):
        model = line(keras.optimizers.SGD(0.02, momentum=0.9), traced=True)
        weights, velocity, old = numpy(model.weights)[0].astype("float64"), 0.0, 0.02
        ours = callbacks.LearningRateScheduleCallback(0.02, momentum_correction=correct, **rule)
        fit(model, ours, epochs=3)
        for batch in range(18):
            rate = 0.02 * (1 + batch / 6)
            part = slice(4 * (batch % 6), 4 * (batch % 6) + 4)
            gradient = 2 * x[part].T @ (x[part] @ weights - y[part]) / 4
            velocity = velocity * 0.9 * (rate / old if correct else 1) - rate * gradient
            weights, old = weights + velocity, rate
        assert np.allclose(numpy(model.weights)[0], weights, rtol=1e-4, atol=1e-5), correct
        assert model.optimizer.momentum == 0.9
    for optimizer in (keras.optimizers.RMSprop(0.1, momentum=0.5), keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.5)
    )):  # fmt: skip
        model = network(optimizer)
        optimizer.build(model.trainable_variables)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        kept = getattr(inner, "momentums", None) or inner._momentums
        kept[0].assign(keras.ops.ones_like(kept[0]))
        ours = callbacks.LearningRateScheduleCallback(0.1, 0.25)
        ours.set_model(model)
        ours.on_epoch_begin(1)
        ours.on_batch_begin(0)
        assert np.allclose(numpy(kept[:1])[0], 0.25)


@check
def best_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        ours = callbacks.BestModelCheckpoint(monitor="loss")
        with raises(ConfigError, "filepath"):
            fit(network(), ours)
        ours.filepath = str(Path(folder) / f"best{hvd.rank()}.keras")
        losses = fit(network(), ours, samples=8, epochs=3).history["loss"]
        assert ours.best == min(losses)
        x, y = data()
        keras.saving.load_model(ours.filepath).evaluate(x, y, verbose=0)
        light = callbacks.BestModelCheckpoint(
            "loss", save_weights_only=True, filepath=Path(folder) / "best.weights.h5"
        )
        assert light.save_best_only and light.filepath.endswith("best.weights.h5")


if __name__ == "__main__":
    main()
