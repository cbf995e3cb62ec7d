"""How calls are timed: rounds, medians, intervals, stages."""

import gc
import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import timing
from benchmarks.case import Case
from benchmarks.timing import interval, measure, ratios, Sampler, stages


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize(
    ("n", "outside"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (15, 3), (30, 9)]
)
def test_the_interval_of_a_median_is_between_order_statistics(n, outside):
    found = interval([float(x) for x in reversed(range(n))])
    assert found == (outside, (n - 1) / 2, n - 1 - outside)
    # As many values lie outside as a fair coin allows.
    tail = sum(math.comb(n, k) for k in range(outside + 1)) / 2**n
    assert n < 6 or 2 * tail <= 0.05


def test_a_higher_confidence_has_a_wider_interval():
    values = [float(x) for x in range(30)]
    assert interval(values, 0.99).low < interval(values, 0.95).low


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"ours": [1.0, 2.0], "jit": [2.0, 2.0]}, [0.5, 1.0]),
        ({"ours": [1.0]}, []),
        ({"jit": [1.0]}, []),
        ({"ours": [1.0], "jit": [0.0]}, []),
    ],
)
def test_ratios_are_taken_within_rounds(times, expected):
    assert ratios(times, "jit") == expected


@pytest.mark.parametrize(("steps", "fewest"), [(1, 10), (4, 3), (101, 1)])
def test_a_round_has_ten_calls_after_three_that_are_not_timed(steps, fewest):
    calls = []
    sampler = Sampler(lambda: calls.append(1), steps)
    sampler._counts = {"dispatch": fewest, "blocked": fewest}
    sampler.round()
    assert len(calls) == min(3, fewest) + 2 * fewest
    slow = iter(range(10**9))
    sampler = Sampler(lambda: sum(range(10**5)) * next(slow), steps)
    sampler.warm()
    assert min(sampler._counts.values()) >= fewest


def test_dispatch_never_has_more_in_flight_than_jax_allows(monkeypatch):
    waiting, most = [0], [0]

    def call():
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])

    monkeypatch.setattr(jax, "block_until_ready", lambda x: waiting.__setitem__(0, 0))
    Sampler(call)._dispatch(100)
    assert most == [30]


def _case(first=False):
    def makers():
        x = jnp.ones(2)
        jitted = {name: jax.jit(lambda x: x + 1) for name in ("jit", "flat", "ours")}
        return {name: lambda f=f: lambda: f(x) for name, f in jitted.items()}

    return Case("x", "x", "x", makers, ("jit", "flat", "ours"), first=first)


def test_each_round_has_a_time_of_each_contender():
    found = list(measure(_case(), 2))
    assert len(found) == 2
    for done in found:
        assert set(done) == {"dispatch", "blocked"}
        assert all(list(by) == ["jit", "flat", "ours"] for by in done.values())
        assert all(x > 0 for by in done.values() for x in by.values())
    (only,) = measure(_case(), 1, ("jit", "ours"))
    assert list(only["dispatch"]) == ["jit", "ours"]


def test_a_case_may_allow_fewer_rounds_and_collection_is_restored(monkeypatch):
    case = Case(**{**vars(_case()), "rounds": 1})
    rounds = measure(case, 5)
    next(rounds)
    assert not gc.isenabled()
    assert list(rounds) == [] and gc.isenabled()
    # Also if the iteration is given up.
    rounds = measure(case, 5)
    next(rounds)
    rounds.close()
    assert gc.isenabled()


def test_the_stages_of_a_first_call():
    def call():
        return jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3))

    found = stages(call)
    assert list(found) == ["trace", "lower", "compile", "run", "total"]
    assert all(x > 0 for x in found.values())
    parts = sum(found[name] for name in ("trace", "lower", "compile", "run"))
    assert parts == pytest.approx(found["total"])
    f = jax.jit(lambda x: x)
    f(jnp.ones(3))
    assert stages(lambda: f(jnp.ones(3)))["compile"] == 0


def test_a_trace_within_a_trace_counts_once():
    assert timing._covered([(0.0, 4.0), (1.0, 2.0), (6.0, 7.0)]) == 5.0
