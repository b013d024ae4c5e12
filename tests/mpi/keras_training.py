"""Keras 3 optimizers on real ranks, with data of their own: ``keras_training.py [check ...]``.

``KERAS_BACKEND=torch`` runs them on torch.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from keras_common import (
    LOSS,
    SGD,
    Compression,
    after_every_step,
    alone_on_all_data,
    check,
    data,
    distance,
    exchange,
    hvd,
    keras,
    main,
    network,
    np,
    raises,
    same,
    side,
    trained,
    units,
)

from hvd_gradflow import events
from hvd_gradflow.errors import ConfigError, UnsupportedError


@check
def weights_equal_after_every_step():
    for name in ("adaptive", "log4", "deadzone", "auto", "wavelet", "sign1", "topk", "powersgd"):
        model = network()
        model.compile(hvd.DistributedOptimizer(SGD(0.1), compression=getattr(Compression, name)), LOSS)
        x, y = data()
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[after_every_step(model)])
        assert isinstance(model.optimizer, SGD) and type(model.optimizer).__name__ == "SGD"


@check
def as_on_one_device():
    """Uncompressed, n ranks do what one device does with their batches together; 4 bits come close."""
    for make in (
        lambda: SGD(0.1, momentum=0.9, global_clipnorm=0.3, weight_decay=0.01),
        lambda: SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
        lambda: keras.optimizers.AdamW(0.01),
    ):
        oracle = alone_on_all_data(make())
        for compression, error in ((Compression.none, 2e-3), (Compression.bf16, 0.03)):
            model = trained(hvd.DistributedOptimizer(make(), compression=compression))
            same(model)
            if "adam" in make().name:
                error *= 5  # it divides by what is small
            assert distance(model, oracle) <= error, (make().name, compression, distance(model, oracle))


@check
def guarded():
    """A code too coarse is raised, in ``fit``; the loss that one rank reports counts for all."""
    coarse = Compression.int2
    guard = hvd.AccuracyGuard(coarse, error=0.2, loss=0.05, patience=1, window=2)
    seen = []
    end = events.subscribe(lambda kind, fields: seen.append(fields) if kind == "guard" else None)
    model = network()
    model.compile(hvd.DistributedOptimizer(SGD(0.1), compression=guard), LOSS)
    x, y = data()
    losses = []
    calls = [after_every_step(model)]
    if hvd.rank():
        calls.append(hvd.callbacks.ReportLossCallback(guard))
    calls.append(
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: losses.append(logs["loss"]))
    )
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=calls)
    end()
    assert seen and all(found == seen for found in exchange(seen)), seen
    assert any("energy" in f["why"] for f in seen) and all(f["before"] != f["after"] for f in seen)
    total, count = guard._losses.totals()
    assert count == (8 if hvd.rank() else 0)
    if count:  # what Keras logs are means since the epoch began
        assert np.isclose(total, 4 * (losses[3] + losses[7]), rtol=1e-4), (total, losses)
    with raises(ConfigError, "AccuracyGuard"):
        hvd.callbacks.ReportLossCallback(Compression.int8)


@check
def accumulated_gradients():
    """Reduced on update steps only, before clipping; summed or averaged over the passes."""
    oracle = alone_on_all_data(SGD(0.1, clipnorm=0.5), batch=32)
    for options, keywords, rate in (
        ({"gradient_accumulation_steps": 2}, {}, 0.1),
        ({}, {"backward_passes_per_step": 2, "average_aggregated_gradients": True}, 0.1),
        ({}, {"backward_passes_per_step": 2}, 0.1),
    ):
        summed = keywords.get("backward_passes_per_step") and not keywords.get("average_aggregated_gradients")
        clip = 1e9 if summed else 0.5
        optimizer = SGD(rate, clipnorm=clip, **options)
        before = units()
        model = trained(hvd.DistributedOptimizer(optimizer, compression=Compression.none, **keywords))
        same(model)
        exchanges = units() - before - 1  # a plan, and one bucket for each update
        assert exchanges == 4, exchanges
        if summed:
            assert distance(model, alone_on_all_data(SGD(0.2), batch=32)) < 2e-3
        else:
            assert distance(model, oracle) < 2e-3, (options, keywords, distance(model, oracle))
    # 12 micro-batches and 8 passes: the rest of an epoch is carried into the next.
    optimizer = hvd.DistributedOptimizer(SGD(0.1), compression=Compression.int8, backward_passes_per_step=8)
    model = trained(optimizer, n=48, batch=4)
    same(model)
    assert int(optimizer.iterations) == 24 // 8
    with raises(ConfigError, "mean the same"):
        hvd.DistributedOptimizer(SGD(0.1, gradient_accumulation_steps=2), backward_passes_per_step=2)


@check
def an_infinite_gradient_in_the_middle():
    """With accumulation, inside and outside of a graph: it reaches all ranks, and none hangs."""
    for eagerly in (True, False):
        optimizer = hvd.DistributedOptimizer(
            SGD(0.1), compression=Compression.int8, backward_passes_per_step=2
        )
        model = network()
        model.compile(optimizer, LOSS, run_eagerly=eagerly)
        x, y = data()
        x = x.copy()
        if hvd.rank() == 1:
            x[20] = np.inf
        model.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
        assert not np.isfinite(model.get_weights()[0]).all()
        assert len(set(exchange(int(optimizer.iterations)))) == 1


@check
def a_step_that_is_skipped_together():
    """mixed_float16: a gradient that is not finite on one rank skips the step on all."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        makers = [
            lambda: hvd.DistributedOptimizer(SGD(0.1), compression=Compression.log4),
            lambda: hvd.DistributedOptimizer(
                keras.optimizers.LossScaleOptimizer(SGD(0.1)), compression=Compression.log4(transport="udp")
            ),
            lambda: hvd.DistributedOptimizer(
                SGD(0.1, gradient_accumulation_steps=2), compression=Compression.log4
            ),
        ]
        for make in makers:
            model = network()
            model.compile(make(), LOSS)
            x, y = data()
            if hvd.rank() == 1:
                x[20] = 1e30
            model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
            same(model)
            assert np.isfinite(model.get_weights()[0]).all()
            scale = float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
            assert scale == 2.0**13, scale  # halved for each of two epochs
            assert model.optimizer.gradflow.sent_by_horovod is not None
            assert hvd.wire_counters(model.optimizer)["units"] > 0
            # Compiled once more, Keras makes another loss-scale optimizer around ours.
            plain = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            model.compile(plain, LOSS)
            model.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
            same(model)
    finally:
        keras.config.set_dtype_policy(policy)


@check
def from_config():
    plain = keras.optimizers.Adam(0.01)
    distributed = hvd.DistributedOptimizer(plain, compression=Compression.int8)
    config = distributed.get_config()
    assert config == plain.get_config()
    for copy in (distributed.from_config(config), type(distributed).from_config(config)):
        assert copy.get_config() == config and hasattr(copy, "gradflow")
        same(trained(copy, epochs=1))
    with raises(ConfigError, "distributed already"):
        hvd.DistributedOptimizer(distributed)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """One that Keras does not know, and that its configuration does not describe."""

    def __call__(self, step):
        return 0.1


class Bypassing(SGD):
    """An optimizer that does not clip gradients where Keras' do."""

    def _backend_apply_gradients(self, grads, trainable_variables):
        self._backend_update_step(grads, trainable_variables, self.learning_rate)


@check
def the_optimizer_as_it_is():
    """Its state, and what its configuration does not describe, are kept; one that cannot be is refused."""
    built = trained(SGD(0.1, momentum=0.9), epochs=1).optimizer
    momenta = [keras.ops.convert_to_numpy(m) for m in built.momentums]
    wrapped = hvd.DistributedOptimizer(built, name="other", backward_passes_per_step=2)
    assert int(wrapped._iterations) == 4 and any(np.any(m) for m in momenta)
    for a, b in zip(momenta, wrapped.momentums, strict=True):
        assert np.array_equal(a, keras.ops.convert_to_numpy(b))
    decays = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    decays.exclude_from_weight_decay(var_names=["bias"])
    bias = keras.Variable(np.ones(3, np.float32), name="bias")
    hvd.DistributedOptimizer(decays).apply([keras.ops.zeros(3)], [bias])
    assert np.array_equal(keras.ops.convert_to_numpy(bias), np.ones(3))
    same(trained(hvd.DistributedOptimizer(SGD(Schedule())), epochs=1))
    same(trained(hvd.DistributedOptimizer(SGD(lambda: 0.1)), epochs=1))
    for options in ({}, {"gradient_accumulation_steps": 2}):
        with raises(UnsupportedError, "were not reduced over the ranks"):
            trained(hvd.DistributedOptimizer(Bypassing(0.1, **options)), epochs=1, run_eagerly=True)


@check
def saved_and_loaded():
    """What is saved is the plain optimizer; load_model distributes it, with its state."""
    model = trained(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=Compression.int8), 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        text = zipfile.ZipFile(path).read("config.json").decode()
        assert "gradflow" not in text
        plain = keras.models.load_model(path)
        assert not hasattr(plain.optimizer, "gradflow")
        loaded = hvd.load_model(path, compression=Compression.int8)
        with raises(ConfigError, "without an optimizer"):
            bare = Path(folder) / "bare.keras"
            network().save(bare)
            hvd.load_model(bare)
    assert type(loaded.optimizer).__name__ == "Adam" and hasattr(loaded.optimizer, "gradflow")
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 4
    for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        assert np.array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)), a.path
    x, y = data()
    loaded.fit(x, y, batch_size=16, epochs=1, verbose=0)
    same(loaded)


@keras.saving.register_keras_serializable("tests")
class Registered(SGD):
    """An optimizer that Keras knows by a registered name."""


@check
def saved_under_its_registered_name():
    model = trained(hvd.DistributedOptimizer(Registered(0.1)), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        assert "tests>Registered" in zipfile.ZipFile(path).read("config.json").decode()
        assert type(keras.models.load_model(path).optimizer) in Registered.__mro__[:1]


class Doubled(SGD):
    """An optimizer that Keras does not know."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * 2.0, variable, learning_rate)


def shifted(y_true, y_pred):
    return LOSS(y_true, y_pred) + 1.0


@check
def loaded_with_custom_objects():
    model = network()
    model.compile(hvd.DistributedOptimizer(Doubled(0.05), compression=Compression.none), shifted)
    x, y = data()
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        loaded = hvd.load_model(path, custom_optimizers=[Doubled], custom_objects={"shifted": shifted})
    assert isinstance(loaded.optimizer, Doubled) and hasattr(loaded.optimizer, "gradflow")
    assert distance(model, alone_on_all_data(SGD(0.1), epochs=1)) < 2e-3
    loaded.fit(x, y, batch_size=16, epochs=1, verbose=0)
    same(loaded)


@check
def local_variables():
    """Their gradients stay on their rank, divided by the number of ranks."""
    for way in ("register", "layers"):
        model = network()
        local = model.layers[1]
        if way == "register":
            optimizer = hvd.DistributedOptimizer(SGD(0.1), compression=Compression.none)
            for variable in local.trainable_variables:
                optimizer.register_local_var(variable)
        else:
            optimizer = hvd.PartialDistributedOptimizer(
                SGD(0.1), compression=Compression.none, local_layers=local
            )
        x, y = data(16)
        model.compile(optimizer, LOSS)
        model.fit(x, y, batch_size=16, epochs=1, verbose=0)
        mine = network()
        mine.compile(SGD(0.1 / hvd.size()), LOSS)
        mine.fit(x, y, batch_size=16, epochs=1, verbose=0)
        kernels = [[keras.ops.convert_to_numpy(layer.kernel) for layer in m.layers] for m in (model, mine)]
        assert np.allclose(kernels[0][1], kernels[1][1], atol=1e-6)
        everyone = exchange([k.tobytes() for k in kernels[0]])
        equal = [len({e[i] for e in everyone}) == 1 for i in range(3)]
        assert equal == [True, False, True], equal


@check
def residuals_survive():
    """Error feedback across a checkpoint: what was owed is paid, or owed still, and nothing is lost."""
    before = trained(hvd.DistributedOptimizer(SGD(0.1), compression=Compression.int4))
    state = before.optimizer.residual_state()
    assert len(state) == 6 and all(np.any(v) for v in state.values() if np.size(v) > 1024), state.keys()
    keras.utils.clear_session()  # as in a new process: the same names
    after = network()
    after.compile(
        hvd.DistributedOptimizer(SGD(1.0), compression=Compression.int4), lambda y, p: 0.0 * LOSS(y, p)
    )
    after.optimizer.load_residual_state(state)
    weights = after.get_weights()
    x, y = data(16)
    after.fit(x, y, batch_size=16, epochs=1, verbose=0)
    same(after)
    left = after.optimizer.residual_state()
    paid = [old - new for old, new in zip(weights, after.get_weights(), strict=True)]
    for variable, sent in zip(after.trainable_variables, paid, strict=True):
        owed = state[variable.path]
        assert np.allclose(sent + left[variable.path], owed, atol=1e-6), variable.path
    assert any(np.any(p) for p in paid)


@check
def sums_and_predivided_averages():
    model = trained(
        hvd.DistributedOptimizer(SGD(0.1 / hvd.size()), op=side.hvd.Sum, compression=Compression.none)
    )
    same(model)
    assert distance(model, alone_on_all_data(SGD(0.1))) < 2e-3
    model = trained(
        hvd.DistributedOptimizer(SGD(0.1), gradient_predivide_factor=4.0, compression=Compression.bf16)
    )
    same(model)
    with raises(UnsupportedError, "Average"):
        hvd.DistributedOptimizer(SGD(0.1), op=side.hvd.Max)
    with raises(ConfigError, "expected a Keras optimizer"):
        hvd.DistributedOptimizer("sgd")


@check
def horovods_own_compressors():
    from importlib import import_module

    stock = import_module(f"{side.session.module}.compression").Compression
    oracle = alone_on_all_data(SGD(0.1))
    for compression, error in ((stock.fp16, 0.02), (stock.none, 2e-3)):
        model = trained(hvd.DistributedOptimizer(SGD(0.1), compression=compression))
        same(model)
        assert distance(model, oracle) <= error, (compression, distance(model, oracle))


@check
def normalized_by_the_optimizers_moments():
    for make in (keras.optimizers.Adam, keras.optimizers.RMSprop, keras.optimizers.Adagrad):
        choice = Compression.deadzone(domain="normalized", step=1.0)
        model = trained(hvd.DistributedOptimizer(make(0.01), compression=choice), epochs=3)
        same(model)
        assert distance(model, alone_on_all_data(make(0.01), epochs=3)) < 0.8


@check
def values():
    got = hvd.allreduce(np.arange(3.0) * (hvd.rank() + 1), name="value")
    assert np.allclose(np.asarray(got), np.arange(3.0) * np.mean([r + 1 for r in range(hvd.size())]))
    assert np.asarray(hvd.broadcast(np.full(2, float(hvd.rank())), 1, name="b")).tolist() == [1.0, 1.0]
    assert np.asarray(hvd.allgather(np.full(1, float(hvd.rank())), name="g")).tolist() == [*range(hvd.size())]
    with raises(UnsupportedError, "broadcast_variables(model.variables"):
        hvd.broadcast_global_variables(0)
    model = network(seed=hvd.rank())
    hvd.broadcast_variables(model.variables, 0)
    same(model)


if __name__ == "__main__":
    main()
