"""The assignment of codecs under a byte budget."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hvd_gradflow.codec.policy_budget import PINNED, Choice, allocate, cheapest


def ladder(weight, n=100):
    return [
        Choice("int2", n // 4, weight * 0.9),
        Choice("log4", n // 2, weight * 0.04),
        Choice("int8", n, weight * 1e-4),
        Choice("bf16", 2 * n, weight * 1e-6),
    ]


def total(chosen):
    return sum(c.bytes for c in chosen.values()), sum(c.error for c in chosen.values())


def test_the_important_tensor_gets_the_bytes():
    chosen = allocate({"small": ladder(1.0), "large": ladder(1000.0)}, budget=150)
    assert chosen["large"].codec == "int8"
    assert chosen["small"].codec == "log4"


def test_a_budget_for_everything_gives_the_most_exact():
    assert {c.codec for c in allocate({"a": ladder(1.0), "b": ladder(2.0)}, budget=400).values()} == {"bf16"}


def test_a_budget_out_of_reach_gives_the_smallest():
    options = {"a": ladder(1.0), "b": ladder(2.0)}
    assert cheapest(options) == 50
    assert total(allocate(options, budget=10))[0] == 50


def test_ties_do_not_depend_on_the_order_of_the_tensors():
    one = allocate({"a": ladder(1.0), "b": ladder(1.0)}, budget=100 + 25)
    other = allocate({"b": ladder(1.0), "a": ladder(1.0)}, budget=100 + 25)
    assert one == other
    assert total(one)[0] <= 125


def test_a_choice_that_is_larger_and_worse_is_never_taken():
    options = {"a": [Choice("good", 10, 1.0), Choice("bad", 20, 2.0), Choice("same", 10, 1.5)]}
    assert allocate(options, budget=100)["a"].codec == "good"


tensors = st.lists(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 100)), min_size=1, max_size=4), min_size=1, max_size=5
)


@given(tensors, st.integers(0, 200))
def test_budget_holds_and_error_is_the_best_possible_or_near(sizes, budget):
    options = {
        f"t{i}": [Choice(f"c{j}", size, error) for j, (size, error) in enumerate(choices)]
        for i, choices in enumerate(sizes)
    }
    least = cheapest(options)
    used, error = total(allocate(options, budget))
    if budget < least:
        assert used == least
        return
    assert used <= budget
    fitting = [p for p in product(*options.values()) if sum(c.bytes for c in p) <= budget]
    best = min(sum(c.error for c in p) for p in fitting)
    # Greed misses the optimum by less than one step of one tensor; the largest are not left to it.
    by_size = sorted(options.values(), key=lambda o: -max(c.bytes for c in o))
    steps = [max(c.error for c in o) - min(c.error for c in o) for o in by_size[PINNED:]]
    assert error <= best + max(steps, default=0.0) + 1e-9


def test_one_tensor_that_holds_most_bytes_does_not_waste_the_budget():
    weights = {"large": (100.0, 10_000), "a": (200.0, 100), "b": (100.0, 100), "c": (50.0, 100)}
    options = {name: ladder(weight, n) for name, (weight, n) in weights.items()}
    # log4 for all takes 5150 bytes. By gain per byte the small ones climb first, and the large one's step
    # from 2500 to 5000 bytes would fit no more.
    chosen = allocate(options, budget=5125)
    assert {name: c.codec for name, c in chosen.items()} == {
        "large": "log4",
        "a": "log4",
        "b": "log4",
        "c": "int2",
    }
