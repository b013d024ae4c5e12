"""Tapes on real ranks: ``tf_tape.py dropin|stock [check ...]``."""

from __future__ import annotations

import horovod.tensorflow as stock
import numpy as np
import tensorflow as tf
from tf_common import ERROR, SPARING, check, compare, expected, main, noise, raises, reduced, same_everywhere

import hvd_gradflow.tensorflow as hvd
from hvd_gradflow import config
from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.reduce.route import Route
from hvd_gradflow.tensorflow import Compression
from hvd_gradflow.tensorflow.session import session as hvd_session

SHAPES = [(64, 48), (3, 3, 8, 24), (40,), (2000,), ()]


def variables_of(shapes, dtype="float32"):
    return [tf.Variable(tf.zeros(s, dtype), name=f"v{i}") for i, s in enumerate(shapes)]


def units():
    return hvd.wire_counters()["units"]


@check
def every_codec(path):
    """Each codec, eagerly and in a graph."""
    # Horovod traces a function for each; two will do there.
    for name in ERROR if path == "dropin" else ("log4", "adaptive", "auto"):
        error = ERROR[name]
        variables = variables_of(SHAPES)
        gradients = [noise(*s, seed=i) for i, s in enumerate(SHAPES)]
        wanted = expected(gradients)
        step = lambda *g, v=variables, n=name: reduced(path, g, v, n)  # noqa: E731
        compare(step(*gradients), wanted, error, f"{name} eager")
        graph = tf.function(step)
        for _ in range(2):
            found = graph(*[tf.constant(g) for g in gradients])
            compare(found, wanted, 2 * error, f"{name} graph")  # it owes what the step before has lost


@check
def shapes_and_dtypes(path):
    """Odd lengths, no elements, 16 and 64 bits."""
    shapes = [(0,), (), (1,), (2,), (3,), (7,), (1023,), (1024,), (1025,), (2305,), (1009, 2)]
    for dtype, error, codec in (
        ("float32", 3e-2, "int8"),
        ("float64", 3e-2, "int8"),
        ("float16", 3e-2, "int8"),
        ("bfloat16", 5e-2, "int8"),
        *((dtype, ERROR[c], c) for dtype, c in zip(("float64", "bfloat16", "float32", "float16"), SPARING)),
    ):
        variables = variables_of(shapes, dtype)
        gradients = [noise(*s, seed=i) for i, s in enumerate(shapes)]
        rounded = [np.asarray(tf.cast(g, dtype), np.float64) for g in gradients]
        found = reduced(path, gradients, variables, codec)
        assert [g.dtype.name for g in found] == [dtype] * len(shapes)
        compare(found, expected(rounded), error, dtype)
    exact = [np.arange(6000, dtype=np.float64) / 3 + stock.rank()]
    compare(reduced(path, exact, variables_of([(6000,)], "float64"), "none"), expected(exact), 1e-15)


@check
def what_was_given_and_returned_stays(path):
    """Tensors are immutable: nothing is reduced in place, and no two results share memory."""
    shapes = [(64, 48), (3000,), (), (1024, 512), (0,)]
    variables = variables_of(shapes)
    given = [tf.constant(noise(*s, seed=i)) for i, s in enumerate(shapes)]
    copies = [g.numpy().copy() for g in given]
    wanted = expected(copies)
    graph = tf.function(lambda *g: reduced(path, g, variables, "int8"))
    calls = [lambda *g: reduced(path, g, variables, "int8"), graph]
    if path == "dropin":
        calls.append(lambda *g: hvd.grouped_allreduce(g, compression=Compression.int8, name="stays"))
        calls.append(lambda *g: [hvd.allreduce(x, compression=Compression.int8) for x in g])
        calls.append(tf.function(calls[-1]))
    found = [(f, [x.numpy().copy() for x in f]) for call in calls for f in (call(*given), call(*given))]
    for results, values in found:
        compare(results, wanted, 6e-2)
        assert all(np.array_equal(r.numpy(), v) for r, v in zip(results, values, strict=True))
    assert all(np.array_equal(g.numpy(), c) for g, c in zip(given, copies, strict=True))
    if path == "dropin":
        reducer = hvd_session.reducer_of(stock.global_process_set, Route())
        on_device = config.load().device == "emulated"
        stream = next(s for n, s in reversed(reducer.streams.items()) if n.startswith("tape"))
        assert (stream._placed is not None) == on_device and bool(reducer._places) == on_device


@check
def large_values(path):
    """60000 in 16 bits on every rank: neither the small tensor nor the large one overflows."""
    variables = variables_of([(5,), (3000,)], "float16")
    gradients = [np.full(5, 60000.0), np.full(3000, 60000.0)]
    for codec in ("none", "fp16", "int8", *SPARING):
        for g in reduced(path, gradients, variables, codec):
            sent = g.numpy()[g.numpy() != 0]
            assert len(sent) == len(g) or codec == "topk", (codec, len(sent))
            assert np.allclose(sent, 60000.0, rtol=0.2 if codec == "wavelet" else 1e-3), (codec, g)


@check
def none_stays_none(path):
    variables = variables_of([(40, 40), (50, 30), (7,)])
    gradients = [noise(40, 40), None, noise(7)]
    if path == "stock":
        found = reduced(path, gradients, variables, "log4")
    else:
        found = tf.function(lambda a, b: reduced(path, [a, None, b], variables, "log4"))(
            gradients[0], gradients[2]
        )
    assert found[1] is None
    compare([found[0], found[2]], expected([gradients[0], gradients[2]]), 0.4)


@check
def sum_and_predivide(path):
    variables = variables_of([(50, 40), (9,)])
    gradients = [noise(50, 40), noise(9)]
    compare(
        reduced(path, gradients, variables, "int8", op=stock.Sum), expected(gradients, average=False), 3e-2
    )
    found = reduced(path, gradients, variables, "int8", gradient_predivide_factor=4.0)
    compare(found, expected(gradients), 3e-2)
    if path == "stock":
        for groups in (1, 2):
            compare(reduced(path, gradients, variables, "int8", groups=groups), expected(gradients), 3e-2)


@check
def sparse_gradients(path):
    """Duplicate indices are summed, on a rank and between ranks; with and without compression."""
    table = tf.Variable(tf.zeros((50, 64)), name="table")
    dense = tf.Variable(tf.zeros((64, 32)), name="dense")
    rows = [[0, 1, 0], [0, 2, 2], [4, 0, 49]][stock.rank()]
    weights = noise(3, 64, seed=5)

    def step(compression, **options):
        choice = compression.bind([table, dense]) if path == "stock" else compression
        with tf.GradientTape() as tape:
            picked = tf.gather(table, rows)
            loss = tf.reduce_sum(picked * weights) + tf.reduce_sum(dense * 2.0)
        tape = (stock if path == "stock" else hvd).DistributedGradientTape(
            tape, compression=choice, **options
        )
        return tape.gradient(loss, [table, dense])

    local = np.zeros((50, 64))
    np.add.at(local, rows, weights)
    wanted = expected([local, np.full((64, 32), 2.0)])
    for compression, error, error_of_dense in (
        (Compression.none, 1e-6, 1e-6),
        (Compression.int8, 3e-2, 3e-2),
        (Compression.adaptive, 0.1, 0.1),
        (Compression.sign1, 0.1, None),  # values without error feedback: int8
        (Compression.topk, 0.1, None),
    ):
        for call in (step, tf.function(step)):
            found = call(compression)
            assert isinstance(found[0], tf.IndexedSlices)
            if path != "stock" and compression is not Compression.none:
                assert len(set(found[0].indices.numpy())) == len(found[0].indices), "an index came twice"
            if error_of_dense is None:
                compare(found[:1], wanted[:1], error, f"{compression}")
                continue
            compare(found, wanted, error, f"{compression}")
            found = call(compression, sparse_as_dense=True)
            assert isinstance(found[0], tf.Tensor)
            compare(found, wanted, error_of_dense, f"{compression} as dense")


@check
def not_finite_anywhere(path):
    """NaN on one rank is NaN on all; the next step is clean."""
    variables = variables_of([(64, 64), (5,)])
    good = [noise(64, 64), noise(5)]
    bad = [g.copy() for g in good]
    if stock.rank() == 1:
        bad[0][3, 4], bad[1][2] = np.nan, np.inf
    for codec in ("int8", "log4", *SPARING):
        reduced(path, good, variables, codec)
        found = reduced(path, bad, variables, codec)
        assert not np.isfinite(found[0].numpy()).all() and not np.isfinite(found[1].numpy()).all()
        found = reduced(path, good, variables, codec)
        assert np.isfinite(found[0].numpy()).all()
        compare(found, expected(good), 4.0 if codec in SPARING else 0.8, codec)


@check
def error_feedback(path):
    """What int4 loses comes later: the mean over steps converges."""
    variables = variables_of([(64, 64)])
    gradient = [noise(64, 64)]
    wanted = expected(gradient)[0]
    graph = tf.function(lambda g: reduced(path, [g], variables, "int4"))
    total = sum(graph(tf.constant(gradient[0]))[0].numpy().astype(np.float64) for _ in range(40))
    assert np.linalg.norm(total / 40 - wanted) <= 0.02 * np.linalg.norm(wanted)


@check
def denormals_in_frameworks_threads(path):
    """Threads of TensorFlow flush denormals to zero; what runs in them for us does not."""
    multiples = np.random.default_rng(stock.rank()).integers(-63, 64, (80, 64)) * 4
    multiples[:, 0] = (
        254  # largest in each block: all of them, and their means, are int8's codes times a scale
    )
    gradient = multiples.astype(np.float32) * np.float32(2.0**-145)
    wanted = expected([gradient])[0]
    assert np.abs(wanted).max() < np.finfo(np.float32).tiny
    for call in (lambda f: f, tf.function):
        variables = variables_of([(80, 64)])
        step = call(lambda g, v=variables: reduced(path, [g], v, "int8"))
        for _ in range(3):
            assert np.array_equal(step(tf.constant(gradient))[0].numpy(), wanted), call


@check
def an_ignored_value_is_reduced_all_the_same(path):
    """A function whose result nobody uses: the exchange takes place, on every rank."""
    variables = variables_of([(64, 64)])
    gradient = tf.constant(noise(64, 64))

    @tf.function
    def step():
        reduced(path, [gradient], variables, "int8")

    before = units()
    for _ in range(3):
        step()
    assert units() - before >= 3


@check
def two_tapes_in_one_function(path):
    """As in a GAN; and the function is traced once more on one rank."""
    first, second = variables_of([(40, 40), (4,)]), variables_of([(60, 30)])
    gradients = [noise(40, 40), noise(4), noise(60, 30)]

    @tf.function
    def step(a, b, c, factor):
        del factor
        return [*reduced(path, [a, b], first, "int8"), *reduced(path, [c], second, "int8")]

    wanted = expected(gradients)
    for n in range(3):
        factor = n if stock.rank() == 0 else 0  # a Python number: another trace for each
        compare(step(*[tf.constant(g) for g in gradients], factor), wanted, 6e-2)


@check
def what_is_missing_changes_from_step_to_step(path):
    """Each variable stays in one stream: its residual is kept, and memory is bounded."""
    if path == "stock":
        return  # where names follow from what is not None
    variables = variables_of([(40, 40), (50, 40), (60, 30), (5,)])
    gradients = [noise(40, 40), noise(50, 40), noise(60, 30), noise(5)]
    wanted = expected(gradients)
    totals, steps = [0.0] * 4, [0] * 4
    for present in [(0, 1), (0, 1, 2, 3), (1, 2), (0,), (2, 3), (0, 1, 2, 3), (0, 3)] * 3:
        given = [g if i in present else None for i, g in enumerate(gradients)]
        found = reduced(path, given, variables, "int4")
        for i, g in enumerate(found):
            assert (g is None) == (i not in present)
            if g is not None:
                totals[i] += g.numpy().astype(np.float64)
                steps[i] += 1
    for total, count, w in zip(totals, steps, wanted, strict=True):
        assert np.linalg.norm(total / count - w) <= 0.1 * np.linalg.norm(w), count
    streams = hvd_session.reducer_of(stock.global_process_set, Route()).streams
    assert sum(s.startswith("tape") for s in streams) < 40


@check
def joined_ranks(path):
    """A rank without data joins; the others go on, and its gradients count as zero."""
    if path == "stock":
        return  # a bound compressor refuses, by its token
    variables = variables_of([(64, 64), (5,)])
    gradients = [noise(64, 64), noise(5)]
    wanted = expected(gradients)
    compare(reduced(path, gradients, variables, "int8"), wanted, 3e-2)
    last = stock.size() - 1
    if stock.rank() != last:
        for _ in range(2):
            found = reduced(path, gradients, variables, "int8")
        assert np.linalg.norm(found[0]) < np.linalg.norm(wanted[0]) * 1.2
    assert hvd.join() >= 0
    compare(reduced(path, gradients, variables, "int8"), wanted, 6e-2)


@check
def misuse_is_told(path):
    variables = variables_of([(64, 64)])
    bound = Compression.int8.bind(variables)
    tape = tf.GradientTape()
    with raises(ConfigError, "is bound, as unmodified Horovod needs it"):
        hvd.DistributedGradientTape(tape, compression=bound)
    with raises(ConfigError, "distributed already"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tape))
    with raises(ConfigError, "expected variables"):
        Compression.int8.bind([1, 2])
    with raises(ConfigError, "no variables to bind"):
        Compression.int8.bind([])


@check
def one_large_among_small(path):
    """1 MB, 20 MB, 1 MB in one step."""
    shapes = [(512, 512), (2560, 2048), (512, 512)]
    variables = variables_of(shapes)
    gradients = [noise(*s, seed=i) for i, s in enumerate(shapes)]
    compare(reduced(path, gradients, variables, "log4"), expected(gradients), 0.4)


@check
def xla_is_refused(path):
    variables = variables_of([(64, 64)])
    step = tf.function(lambda g: reduced(path, [g], variables, "int8"), jit_compile=True)
    with raises(Exception, "pass jit_compile=False to model.compile() or tf.function()"):
        step(tf.constant(noise(64, 64)))


@check
def clipped_by_global_norm(path):
    """As tf.clip_by_global_norm of what is reduced; a norm that is not finite leaves all as it is."""
    if path == "stock":
        return
    table, dense = tf.Variable(tf.zeros((50, 8))), tf.Variable(tf.zeros((64, 48)))

    def step(gradient, limit):
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [0, 1 + stock.rank(), 0])
            loss = tf.reduce_sum(rows * 3.0) + tf.reduce_sum(dense * gradient)
        tape = hvd.DistributedGradientTape(tape, compression=Compression.int8, clip_norm=limit)
        return [*tape.gradient(loss, [table, dense]), tape.grad_norm]

    gradient = tf.constant(noise(64, 48))
    for call in (step, tf.function(step, reduce_retracing=True)):
        local = np.zeros((50, 8))
        np.add.at(local, [0, 1 + stock.rank(), 0], 3.0)
        wanted = expected([local, gradient.numpy()])
        norm = np.sqrt(sum(np.sum(np.square(w)) for w in wanted))
        slices, found, told = call(gradient, 1.0)
        assert isinstance(slices, tf.IndexedSlices) and np.isclose(told, norm, rtol=0.03), (told, norm)
        compare([slices, found], [w / norm for w in wanted], 0.06)
        same_everywhere([tf.Variable(told)])
        assert np.isclose(
            np.sqrt(sum(np.sum(np.square(tf.convert_to_tensor(g))) for g in (slices, found))), 1.0
        )
        _, found, told = call(gradient if stock.rank() else gradient * np.inf, 1.0)
        assert not np.isfinite(told) and not np.isfinite(found).all()
    with raises(ConfigError, "clip_norm=-1"):
        step(gradient, -1)
    with raises(UnsupportedError, "tf.clip_by_global_norm"):
        hvd.DistributedGradientTape(tf.GradientTape(), compression=stock.Compression.fp16, clip_norm=1.0)
    assert hvd.scaled_lr(0.1, 64, 128) == 0.1 * stock.size() * 64 / 128


@check
def fewer_bytes(path):
    """log4 sends an eighth, headers and tokens counted."""
    variables = variables_of([(512, 512), (512,)])
    gradients = [noise(512, 512), noise(512)]
    before = hvd.wire_counters()
    for _ in range(3):
        reduced(path, gradients, variables, "log4")
    after = hvd.wire_counters()
    plain, sent = (after[k] - before[k] for k in ("wire_bytes_uncompressed", "wire_bytes"))
    assert plain / sent >= 7, (plain, sent)


@check
def a_transport_of_its_own(path):
    """A choice says how it travels; the same values, whatever the others do."""
    variables, gradients = variables_of([(64, 48), (2000,)]), [noise(64, 48), noise(2000)]
    wanted = expected(gradients)
    before = hvd.wire_counters().get("udp_data", 0)
    for name, options in (("log4", {}), ("none", {}), ("log4", {"deadline_ms": 1000})):
        choice = getattr(Compression, name)(transport="udp", **options)
        compare(reduced(path, gradients, variables, choice), wanted, ERROR[name], repr(choice))
    exact = hvd.allreduce(tf.constant(gradients[1]), compression=Compression.none(transport="udp"))
    compare([exact], wanted[1:], ERROR["none"])
    ways = [(r.config.transport, r.config.deadline_ms) for r in hvd_session.reducers()]
    assert ways.count(("udp", 0)) == ways.count(("udp", 1000)) == 1, ways
    assert hvd.wire_counters()["udp_data"] >= before + 4


@check
def a_lossless_stock_path_is_told_what_to_do(path):
    """Used unbound, our compressor says what to write."""
    variables = variables_of([(64, 64)])
    if path == "stock":
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[0] ** 2)
        tape = stock.DistributedGradientTape(tape, compression=Compression.int8)
        with raises(Exception, "bind(variables)", "import hvd_gradflow.tensorflow as hvd"):
            tape.gradient(loss, variables)
        with raises(UnsupportedError, "not to allreduce()"):
            stock.allreduce(tf.ones(3000), compression=Compression.int8.bind(variables))
    same_everywhere(variables)


if __name__ == "__main__":
    main()
