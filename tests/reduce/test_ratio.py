"""What is said of a ratio that payloads do not reach."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hvd_gradflow import events
from hvd_gradflow.codec import get
from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.reduce.ratio import LEAVE, WINDOW, RatioWatch

N = 1000  # elements
DEADZONE = get("deadzone", target_ratio=100)


@pytest.fixture
def heard():
    told: list[str] = []
    end = events.subscribe(lambda kind, fields: told.append(fields["message"]) if kind == "warning" else None)
    yield told
    end()


def watch(policy=DEADZONE, rank=0, nodes=3, **options):
    return RatioWatch(SimpleNamespace(rank=rank, node_count=nodes), "opt1", as_policy(policy, **options))


def rounds(watched, ratio, count=2 * WINDOW, plain=0, legs=4):
    """Rounds of a unit of two tensors whose payloads are `ratio` times smaller, to two peers and back."""
    for _ in range(count):
        unit = SimpleNamespace(payload_bytes=round(legs * 4 * N / ratio) if ratio else 0)
        for _ in range(2):
            watched.saw(unit, DEADZONE, N // 2)
        if plain:
            watched.saw(SimpleNamespace(payload_bytes=0), get("none"), plain)
        watched.round_ended()


def test_what_is_missed_for_long_is_told_once(heard):
    watched = watch()
    rounds(watched, 50)
    assert heard == [
        "Compression.deadzone(target_ratio=100) for opt1: out of reach: the payloads of the last 50 steps"
        " are 50 times smaller than the gradients; headers, tables and what error feedback owes take no"
        " less. Ask for 50 at most, or let more elements share a header (GRADFLOW_BUCKET_MIB,"
        " GRADFLOW_CHUNK_KIB)"
    ]
    rounds(watched, 50)
    assert len(heard) == 1


def test_what_is_kept_or_missed_for_a_while_is_not_told(heard):
    watched = watch()
    rounds(watched, 1.05 * 100 / LEAVE)
    for ratio in (50, 120, 50):
        rounds(watched, ratio, WINDOW)
    rounds(watched, 50, WINDOW - 1)
    watched.restart()  # other codecs: steps adapt anew
    rounds(watched, 50, 2 * WINDOW - 1)
    assert heard == []
    rounds(watched, 50, 1)
    assert len(heard) == 1


def test_rounds_whose_bytes_nobody_knows_do_not_count(heard):
    watched = watch()
    rounds(watched, 0, 10 * WINDOW)  # late, or a rank has joined
    assert heard == []


@pytest.mark.parametrize(
    ("policy", "options", "rank", "nodes"),
    [(DEADZONE, {}, 1, 3), (DEADZONE, {}, 0, 1), ("deadzone", {"step": 2.0}, 0, 3), ("adaptive", {}, 0, 3)],
)
def test_one_rank_tells_of_what_was_asked_for(heard, policy, options, rank, nodes):
    watched = watch(policy, rank, nodes, **options)
    assert watched.asks == (policy is DEADZONE and nodes > 1)
    if nodes > 1:
        rounds(watched, 2)
    assert heard == []


def test_what_is_uncompressed_counts_where_a_policy_counts_it(heard):
    rounds(watch(), 110, plain=100 * N)
    assert heard == []
    rounds(watch("adaptive", target_ratio=8), 110, plain=N)
    assert (
        len(heard) == 1 and "Compression.adaptive(target_ratio=8)" in heard[0] and "are 2.0 times" in heard[0]
    )
