"""How calls are timed: rounds, medians, intervals, what is waited for."""

import gc
import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import timing, whole
from benchmarks.case import Case
from benchmarks.timing import interval, measure, Sampler


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize(
    ("n", "outside"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (15, 3), (30, 9)]
)
def test_the_interval_of_a_median_is_between_order_statistics(n, outside):
    values = [float(x) for x in reversed(range(n))]
    assert interval(values) == (outside, (n - 1) / 2, n - 1 - outside)

    # As many values lie outside as a fair coin allows.
    tail = sum(math.comb(n, k) for k in range(outside + 1)) / 2**n
    assert n < 6 or 2 * tail <= 0.05


def test_a_program_has_the_pairs_that_were_asked_for(monkeypatch):
    """However clear the first ones are."""
    order = []
    monkeypatch.setattr(whole, "_process", lambda name, what: order.append(what) or 1.0)
    assert len(whole.compare("x", 12)["seconds"]["ours"]) == 12
    assert order[:4] == ["eqx", "ours", "ours", "eqx"]  # neither is always first


def _case(call, **options):
    names = ("jit", "flat", "ours")
    makers = {name: lambda: call for name in names}
    return Case("x", "x", "x", lambda: makers, names, **options)


@pytest.mark.parametrize(
    ("seconds", "steps", "least"),
    [(0.0, 1, 10), (0.0, 4, 3), (0.0, 101, 1), (1e-3, 1, 10)],
)
def test_a_round_has_ten_calls_or_more_and_never_too_many_at_once(
    seconds, steps, least, monkeypatch
):
    """JAX blocks if more than 32 computations are in flight."""
    calls, in_flight, most_in_flight = 0, 0, 0

    def call():
        nonlocal calls, in_flight, most_in_flight
        calls += 1
        in_flight += steps
        most_in_flight = max(most_in_flight, in_flight)

    def wait(_):
        nonlocal in_flight
        in_flight = 0

    monkeypatch.setattr(jax, "block_until_ready", wait)
    monkeypatch.setattr(timing, "_ROUND_SECONDS", seconds)
    sampler = Sampler(_case(call, steps=steps), call)
    sampler.warm()
    calls = most_in_flight = 0
    sampler.round()

    # Up to three that are not timed, and two ways of timing.
    expected = min(3, least) + 2 * least
    assert calls == expected or (seconds and calls > expected)
    assert most_in_flight <= max(30, steps)


@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ({}, {"dispatch", "blocked"}),
        ({"loop": True}, {"iteration"}),
        ({"first": True}, {"total"}),
    ],
)
def test_each_round_has_a_time_of_each_contender(options, modes, monkeypatch):
    monkeypatch.setattr(timing, "_LOOP_SECONDS", 1e-3)
    x = jnp.ones(2)
    f = jax.jit(lambda x: x + 1)
    collects = []

    def call():
        collects.append(gc.isenabled())
        return f(x)

    times = measure(_case(call, rounds=2, **options), 5)
    assert not collects[-1] and gc.isenabled()
    assert set(times) == modes
    for of_mode in times.values():
        assert list(of_mode) == ["jit", "flat", "ours"]
        for seconds in of_mode.values():
            assert len(seconds) == 2 and min(seconds) > 0
