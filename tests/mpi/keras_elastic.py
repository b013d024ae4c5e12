"""Elastic states for Keras 3, on several ranks: ``keras_elastic.py [check ...]``."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from callbacks_common import (
    TENSORFLOW,
    assert_different,
    assert_equal,
    at,
    check,
    fit,
    hvd,
    main,
    network,
    numpy,
    raises,
)
from horovod.common.exceptions import HorovodInternalError
from mpi4py import MPI  # noqa: F401  initialises MPI, which Horovod would else finalize when it is shut down

from hvd_gradflow.errors import ConfigError
from hvd_gradflow.keras import elastic
from hvd_gradflow.tensorflow.elastic import TensorFlowKerasState
from hvd_gradflow.tensorflow.elastic import run as tensorflow_run


@check
def keras_state():
    model = network(keras.optimizers.Adam(0.01), dropout=True)
    state = elastic.KerasState(model, batch=hvd.rank(), epoch=3 + hvd.rank())
    assert state.optimizer is model.optimizer and len(model.optimizer.variables) > 4
    start = numpy([*model.variables, *model.optimizer.variables])
    fit(model, samples=4)
    state.batch = 17
    assert not all(map(np.array_equal, start, numpy([*model.variables, *model.optimizer.variables])))
    state.restore()
    assert all(map(np.array_equal, start, numpy([*model.variables, *model.optimizer.variables])))
    assert state.batch == hvd.rank()

    fit(model, samples=4)
    state.batch = 20 + hvd.rank()
    state.save()
    saved = numpy(model.weights)
    fit(model, samples=4)
    state.restore()
    assert all(map(np.array_equal, saved, numpy(model.weights))) and state.batch == 20 + hvd.rank()

    assert_different([model.layers[0].kernel])
    roots = hvd.broadcast_object(numpy([*model.weights, *model.optimizer.variables]), root_rank=0)
    state.sync()
    assert all(map(np.array_equal, roots, numpy([*model.weights, *model.optimizer.variables])))
    assert state.batch == 20 and state.epoch == 3
    fit(model, samples=4)
    state.restore()
    assert_equal([*model.weights, *model.optimizer.variables])
    state.commit()
    with raises(ConfigError, "built"):
        elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD())
    bare = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    with raises(ConfigError, "optimizer"):
        elastic.KerasState(bare)
    kind = TensorFlowKerasState if TENSORFLOW else elastic.KerasState
    kind(bare, keras.optimizers.SGD(0.1)).sync()
    assert_equal(bare.weights)


@check
def elastic_callbacks():
    model = network()
    state = elastic.KerasState(model, batch=0, epoch=2)
    commits, seen = [], []
    state.commit = lambda: commits.append((state.epoch, state.batch))
    calls = [elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state)]
    calls += [elastic.CommitStateCallback(state, 4)]
    calls += [at(on_train_batch_end=lambda batch, logs: seen.append(state.batch))]
    fit(model, *calls, epochs=2)
    assert seen == [0, 1, 2, 3, 4, 5] * 2
    assert commits == [(2, 3), (3, 0), (3, 1), (3, 5), (4, 0)], commits


@check
def elastic_run():
    # A failure in the second try: back to what was committed, with Horovod started anew.
    for run in [elastic.run, *([tensorflow_run] if TENSORFLOW else [])]:
        model = network()
        state = elastic.KerasState(model, tries=0)
        resets = []
        state.register_reset_callbacks([lambda resets=resets: resets.append(1)])
        calls = []

        @run
        def train(state, extra, model=model, calls=calls):
            calls.append(extra)
            assert_equal([*model.weights, *model.optimizer.variables])
            if len(calls) == 1:
                state.tries = 1
                state.commit()
                fit(model, samples=4)
                state.tries = 50
                raise failure()
            return state.tries

        assert train(state, "extra") == 1
        assert calls == ["extra"] * 2 and resets == [1]

        @run
        def fails(state):
            raise ValueError("a user's own")

        with raises(ValueError, "a user's own"):
            fails(state)


def failure():
    """What a lost rank raises; TensorFlow has an error of its own for it."""
    if TENSORFLOW:
        return tf.errors.UnknownError(None, None, "{{node HorovodAllreduce}} Horovod has been shut down.")
    return HorovodInternalError()


if __name__ == "__main__":
    main()
