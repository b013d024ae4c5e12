"""Bits by kind, by importance and under a budget."""

import random
from dataclasses import dataclass

import pytest

from hvd_gradflow.codec.policy import AdaptivePolicy
from hvd_gradflow.codec.policy_model import BUCKET_BYTES, elements, encoded_bytes, message_bytes, plain_bytes
from hvd_gradflow.errors import ConfigError


@dataclass(frozen=True)
class Spec:
    name: str
    shape: tuple
    dtype: str = "float32"
    kind: str = "dense"


SPECS = [
    Spec("fc", (512, 512)),
    Spec("emb", (1000, 64), kind="embedding"),
    Spec("conv", (128, 64, 3, 3), kind="conv"),
    Spec("norm", (2048,), kind="vector"),
    Spec("bias", (512,), kind="vector"),
    Spec("tiny", (10, 10)),
]
START = {"fc": "int8", "emb": "int8", "conv": "log4", "norm": "bf16", "bias": "none", "tiny": "none"}


def names(table):
    return {name: codec.name for name, codec in table.items()}


def started(importance="energy", specs=SPECS, **options):
    policy = AdaptivePolicy(**{"window": 10, "warmup": 3, **options})
    return policy, names(policy.start(specs, importance, min_elements=1024))


def statistics(errors=None, densities=None, specs=SPECS):
    """Energy 1 per element and the usual errors, but for what is given."""
    usual = {"int8": 1e-4, "log4": 0.04, "bf16": 2e-6}
    out = {}
    for s in specs:
        if elements(s.shape) >= 1024:
            energy = elements(s.shape) * (densities or {}).get(s.name, 1.0)
            out[s.name] = (energy, energy * (errors or {}).get(s.name, usual[START.get(s.name, "int8")]))
    return out


def after(policy, rounds, **kwargs):
    """The last change that `rounds` equal rounds bring, or None."""
    changes = [policy.update(statistics(**kwargs)) for _ in range(rounds)]
    return next((names(c) for c in reversed(changes) if c is not None), None)


def wire_ratio(table, specs=SPECS):
    """With all that is around payloads; what goes uncompressed shares a payload."""
    sizes = {s.name: plain_bytes(elements(s.shape), s.dtype) for s in specs}
    sent = [
        sizes[s.name] if table[s.name].name == "none" else encoded_bytes(table[s.name], elements(s.shape))
        for s in specs
    ]
    around = [message_bytes(elements(s.shape)) for s in specs if table[s.name].name != "none"]
    return sum(sizes.values()) / (sum(sent) + sum(around) + len(set(table.values())) * BUCKET_BYTES)


def test_start_by_kind():
    assert started()[1] == START


def test_usual_errors_change_nothing():
    policy, _ = started()
    assert after(policy, 200) is None


def test_a_large_residual_raises_bits_one_rung_a_decision():
    policy, _ = started()
    changes = [policy.update(statistics(errors={"conv": 0.5})) for _ in range(14)]
    moved = {i: names(c)["conv"] for i, c in enumerate(changes) if c is not None}
    assert moved == {2: "int8", 12: "bf16"}  # warm-up of 3 rounds, then every 10


def test_an_unimportant_tensor_loses_bits():
    policy, _ = started()
    assert after(policy, 3, densities={"fc": 0.01})["fc"] == "log4"


def test_an_optimizer_that_weighs_coordinates_alike_keeps_them():
    policy, _ = started(importance="coordinate")
    assert after(policy, 30, densities={"fc": 0.01}) is None


def test_vectors_keep_their_16_bits():
    policy, _ = started()
    assert after(policy, 30, errors={"norm": 0.5}, densities={"norm": 1e-6}) is None


def test_hysteresis_a_tensor_near_a_bound_moves_once():
    policy, _ = started(window=1, warmup=1)
    rng = random.Random(0)
    changes = 0
    for _ in range(
        300
    ):  # an energy that wanders around the bound, an eighth of the mean of all, which 0.048 makes
        density = 0.048 * rng.uniform(1 / 1.5, 1.5)
        error = 0.04 if policy._table["fc"] == "log4" else 1e-4
        changes += policy.update(statistics(errors={"fc": error}, densities={"fc": density})) is not None
    assert changes == 1


def test_a_tensor_that_counts_again_comes_back():
    policy, _ = started()
    after(policy, 3, densities={"fc": 0.01})
    assert after(policy, 60, errors={"fc": 0.04}, densities={"fc": 1.0})["fc"] == "int8"


def test_decisions_come_after_warmup_and_then_each_window():
    policy, _ = started(warmup=4, window=20)
    calls = []
    policy._on_ladder = lambda: calls.append(policy._rounds) or dict(policy._table)
    for _ in range(50):
        policy.update(statistics())
    assert calls == [4, 24, 44]


def test_rounds_without_statistics_and_not_finite_ones_decide_nothing():
    policy, _ = started()
    assert all(policy.update({}) is None for _ in range(30))
    bad = dict.fromkeys(statistics(), (float("nan"), float("inf")))
    assert all(policy.update(bad) is None for _ in range(30))


def test_equal_numbers_in_another_order_give_equal_tables():
    rng = random.Random(1)
    one, other = started(target_ratio=6)[0], started(target_ratio=6, specs=SPECS[::-1])[0]
    for _ in range(60):
        seen = {s.name: (rng.expovariate(1) * elements(s.shape), rng.random()) for s in SPECS[:4]}
        a = one.update(seen)
        b = other.update(dict(reversed(seen.items())))
        assert (a is None) == (b is None)
        if a is not None:
            assert names(a) == names(b)


@pytest.mark.parametrize("ratio", [1.5, 3.5, 6, 8, 10])
def test_the_budget_is_held_from_the_start_and_at_every_decision(ratio):
    policy = AdaptivePolicy(target_ratio=ratio, window=5, warmup=2)
    table = policy.start(SPECS, "energy", min_elements=1024)
    assert wire_ratio(table) >= ratio
    rng = random.Random(2)
    for _ in range(60):
        energies = {s.name: 10 ** rng.uniform(-6, 3) for s in SPECS[:4]}
        table = policy.update({n: (e, e * rng.random()) for n, e in energies.items()}) or table
        assert wire_ratio(table) >= ratio


def test_what_is_around_many_small_buckets_counts_in_the_budget():
    specs = [Spec(f"w{i}", (64, 64)) for i in range(12)]
    policy = AdaptivePolicy(target_ratio=40, window=1, warmup=1)
    table = policy.start(specs, "energy", min_elements=1024)
    rng, most = random.Random(3), 0
    for _ in range(40):
        table = policy.update({s.name: (10 ** rng.uniform(-4, 4), rng.random()) for s in specs}) or table
        assert wire_ratio(table, specs) >= 40
        most = max(most, len(set(table.values())))
    assert most > 2


def settle(policy, table, rounds=60, **kwargs):
    """The table after so many rounds in which each codec loses what is expected of it."""
    for _ in range(rounds):
        errors = {name: policy._model[label] for name, label in policy._table.items()}
        change = policy.update(statistics(errors, **kwargs))
        table = names(change) if change else table
    return table


@pytest.mark.parametrize(("much", "little"), [("conv", "emb"), ("emb", "conv")])
def test_under_a_budget_bits_go_where_the_energy_is(much, little):
    policy, first = started(target_ratio=8)
    settle(policy, first, densities={much: 100.0, little: 0.001})
    assert policy._model[policy._table[much]] < policy._model[policy._table[little]]


def test_under_a_budget_adam_weighs_elements_not_energy():
    policy, first = started(importance="coordinate", target_ratio=8)
    assert settle(policy, first, densities={"conv": 100.0, "emb": 0.001}) == first


def test_under_a_budget_a_small_gain_is_not_worth_a_new_plan():
    specs = [Spec("a", (256, 256)), Spec("b", (256, 256))]
    policy, _ = started(target_ratio=6, specs=specs)
    # Both alike: whichever got the bits first keeps them while the other is but 5 % more important.
    first = dict(policy._table)
    seen = {"a": (1.0, 0.0), "b": (1.0, 0.0)}
    policy._seen.error = lambda name: None  # the expected errors throughout
    for i in range(60):
        seen = {"a": (1.0, 0.5), "b": (1.05 if i % 2 else 0.95, 0.5)}
        assert policy.update(seen) is None
    assert policy._table == first


def test_a_ratio_out_of_reach_is_refused_with_the_one_that_is_not():
    specs = [*SPECS, *(Spec(f"bias{i}", (1000,)) for i in range(30))]
    with pytest.raises(ConfigError, match=r"target_ratio 40 is out of reach.*ask for at most \d+\.\d+"):
        started(target_ratio=40, specs=specs)


def test_a_large_ratio_goes_by_deadzone_and_counts_what_is_not_compressed():
    for importance, domain in (("energy", "energy"), ("coordinate", "normalized")):
        table = AdaptivePolicy(target_ratio=20).start(SPECS, importance, min_elements=1024)
        used = [codec for codec in table.values() if codec.lossy]
        assert {codec.domain for codec in used if codec.name == "deadzone"} == {domain}
        assert table["fc"].name == "deadzone"
        assert wire_ratio(table) >= 20


@pytest.mark.parametrize("importance", ["energy", "coordinate"])
def test_a_similarity_is_kept_in_the_cheapest_way(importance):
    policy, table = started(importance, similarity=0.985)
    assert {table[name] for name in ("conv", "fc", "emb")} == {"deadzone"}
    assert table["tiny"] == "none"
    assert policy._codecs["deadzone"].similarity == 0.985
    assert settle(policy, table) == table


def test_a_codec_that_loses_little_is_taken_where_it_is_smaller():
    policy, _ = started(similarity=0.985)
    policy._seen.remembered = lambda name, codec, decision: 0.01 if (name, codec) == ("fc", "int2") else None
    assert after(policy, 3)["fc"] == "int2"


def test_fresh_forgets():
    policy, _ = started()
    after(policy, 3, densities={"fc": 0.01})
    again = policy.fresh()
    assert names(again.start(SPECS, "energy", 1024)) == START
    assert again.get_config() == policy.get_config()


def test_options_reach_the_codecs():
    policy = AdaptivePolicy(block=256, rounding="stochastic", seed=7, entropy=True)
    table = policy.start(SPECS, "energy", 1024)
    for name in ("fc", "conv"):
        config = table[name].get_config()
        wanted = {"block": 256, "rounding": "stochastic", "seed": 7, "entropy": True}
        assert {key: config[key] for key in wanted} == wanted
    bare = AdaptivePolicy(error_feedback=False).start(SPECS, "energy", 1024)
    assert not any(codec.get_config().get("error_feedback") for codec in bare.values())
    assert policy(window=3).get_config() == {**policy.get_config(), "window": 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 8}, "unknown option of adaptive 'ratio'; known: .*target_ratio"),
        ({"target_ratio": 0.5}, "target_ratio 0.5"),
        ({"similarity": 1.5}, "similarity 1.5"),
        ({"similarity": 0.9, "target_ratio": 8}, "exclude each other"),
        ({"target_ratio": float("nan")}, "target_ratio nan"),
        ({"window": 0}, "window 0"),
        ({"warmup": 1.5}, "warmup 1.5"),
        ({"margin": 1.0}, "margin 1.0"),
        ({"rounding": "up"}, "up"),
        ({"block": 100}, "100"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(ConfigError, match=words):
        AdaptivePolicy(**options)


def test_an_unknown_importance_is_named():
    with pytest.raises(ConfigError, match="importance 'size'"):
        started(importance="size")
