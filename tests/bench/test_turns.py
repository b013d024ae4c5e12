"""Turns on one rank: who is called when, how often, and what is kept."""

import time

import pytest

from hvd_gradflow.bench.link import Link
from hvd_gradflow.bench.turns import ENOUGH, LEAST, Contender, spread, take_turns


@pytest.fixture
def turns():
    from mpi4py import MPI

    def run(contenders, **options):
        said = []
        link = Link(0, ["here"], [[0]])
        take_turns(
            MPI.COMM_SELF,
            contenders,
            link,
            **{"seconds": 1.0, "repeats": None, "say": said.append, **options},
        )
        return said

    return run


def test_they_alternate_and_warm_ups_are_dropped(turns):
    calls = []
    a = Contender("a", "", lambda: calls.append("a"))
    b = Contender("b", "", lambda: calls.append("b"))
    firsts = []
    assert turns([a, b], repeats=4, after_first=lambda c: firsts.append((c.system, len(calls)))) == []
    assert "".join(calls) == "ab" * 6
    assert firsts == [("a", 1), ("b", 2)]
    assert len(a.samples) == len(b.samples) == 4


def test_the_slower_one_shows(turns):
    slow = Contender("slow", "", lambda: time.sleep(0.02))
    fast = Contender("fast", "", lambda: None)
    turns([slow, fast], repeats=3)
    assert spread([s.seconds for s in slow.samples])[1] >= 0.02
    assert spread([s.seconds for s in fast.samples])[1] < 0.02


def test_the_time_decides_how_many_and_few_are_said(turns):
    slow = Contender("slow", "", lambda: time.sleep(0.02))
    said = turns([slow], seconds=0.03)
    assert len(slow.samples) == LEAST
    assert said and said[0].startswith(f"{LEAST} runs only, as one of each takes 0.0 s")
    again = Contender("slow", "", lambda: time.sleep(0.002))
    assert turns([again], seconds=0.1) == []
    assert ENOUGH <= len(again.samples) <= 50


def test_bytes_are_those_of_the_call(turns):
    sent = [100]

    def call():
        sent[0] += 40

    counted = Contender("a", "", call, handed=lambda: sent[0])
    turns([counted], repeats=3)
    assert [s.handed for s in counted.samples] == [40] * 3
    assert counted.encoded_bytes(2) == 20  # two ways over one link
    assert counted.encoded_bytes(1) is None
    assert Contender("b", "", call, encoded=7).encoded_bytes(2) == 7
    assert Contender("c", "", call).encoded_bytes(2) is None
