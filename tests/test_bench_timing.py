"""What a benchmark times, and in which unit, by a fake clock."""

import jax
import pytest

from eqx_fastjit.bench import _grids, _results, _studies, _timing
from eqx_fastjit.bench._compare import Change, compare
from eqx_fastjit.bench._results import Spread
from tests.clock import COMPILED, LOWERED, TRACED


pytestmark = pytest.mark.one_engine


@pytest.fixture
def block(bench_clock, monkeypatch):
    """How many seconds the device still computes when a call has returned."""
    seconds = [0.0]
    monkeypatch.setattr(
        jax, "block_until_ready", lambda x: (bench_clock.sleep(seconds[0]), x)[1]
    )
    return seconds


def sampler(call, **options):
    sampler = _timing.Sampler(call, **options)
    sampler.warm()
    return sampler


def test_dispatch_ends_when_the_call_returns(bench_clock, block):
    block[0] = 1e-3
    times = sampler(lambda: bench_clock.sleep(2e-6)).round()
    # In microseconds.
    assert times == {"dispatch": pytest.approx(2), "blocked": pytest.approx(1002)}
    block[0] = 2.0
    times = sampler(lambda: bench_clock.sleep(1.0)).round()
    assert times == {"dispatch": pytest.approx(1e6), "blocked": pytest.approx(3e6)}


def test_no_more_calls_are_in_flight_than_jax_lets(bench_clock, block, monkeypatch):
    calls, waits = [], []
    monkeypatch.setattr(jax, "block_until_ready", lambda _: waits.append(len(calls)))
    one = _timing.Sampler(lambda: (calls.append(1), bench_clock.sleep(1e-6)))
    one._dispatch(70)
    assert waits == [30, 60, 70]
    calls.clear(), waits.clear()
    _timing.Sampler(lambda: calls.append(1), steps=10)._dispatch(7)
    assert waits == [3, 6, 7]


def test_each_round_is_one_figure(bench_clock, block):
    value = [1e-3]
    rounds = _timing.measure({"a": lambda: bench_clock.sleep(value[0])}, 3)
    for _ in range(3):
        next(rounds)
        value[0] *= 2
    with pytest.raises(StopIteration) as stopped:
        next(rounds)
    assert stopped.value.value["a"].dispatch == pytest.approx([1000, 2000, 4000])


def test_stages_of_a_first_call(bench_clock, block):
    block[0] = 8e-3

    def call():
        hear = _studies._listener().hear
        for event, seconds in ((TRACED, 1e-3), (LOWERED, 2e-3), (COMPILED, 4e-3)):
            bench_clock.sleep(seconds)
            hear(event, seconds)
        # This was part of the compilation before, so it is not counted again.
        hear(COMPILED, 3e-3)
        bench_clock.sleep(16e-3)

    # In milliseconds. The rest is the run, including waiting for its result.
    assert _studies.split_in_stages(call).times == {
        "trace": pytest.approx(1),
        "lower": pytest.approx(2),
        "compile": pytest.approx(4),
        "run": pytest.approx(24),
        "total": pytest.approx(31),
    }


def test_the_time_in_calls_of_a_pipeline(bench_clock, block):
    block[0] = 0.5
    step = lambda state, batch: (bench_clock.sleep(2e-3), (state, 1.0))[1]  # noqa: E731
    times = _studies._loop(step, None).times
    assert times == {"loop": pytest.approx(520), "in calls": pytest.approx(20)}


def test_a_fresh_process_is_timed_in_milliseconds():
    """Not in seconds or microseconds."""
    code = _studies._IMPORT.format("import time; time.sleep(0.5)")
    times = _studies._measured("import", code).times
    assert list(times) == ["import"] and 500 <= times["import"] < 500_000


# --- verdicts ------------------------------------------------------------------------


def entry(ours, jit):
    return {"times": {"blocked": {"ours": ours, "jit": jit}}}


@pytest.mark.parametrize(
    ("ours", "text", "kind"),
    [
        ([0.8, 0.9, 0.95], "0.90", "win"),
        # The quartiles are 0.85 and 1, so the rounds do not agree.
        ([0.8, 0.9, 1.1], "~0.90", "even"),
        ([0.8, 0.9, 1.09], "0.90", "win"),
        ([0.92, 1.1, 1.2], "1.10", "loss"),
        ([0.89, 1.1, 1.2], "~1.10", "even"),
        ([0.9, 1.1, 1.2], "~1.10", "even"),
    ],
)
def test_a_mark_where_the_quartiles_include_one(ours, text, kind):
    cell = _grids._ratio_cell(entry(ours, [1.0, 1.0, 1.0]), "blocked", "jit")
    assert cell == (text, kind)


@pytest.mark.parametrize(
    ("after", "overlap"),
    [
        (Spread(1.2, 1.5, 2.0), True),
        (Spread(1.3, 1.5, 2.0), False),
        (Spread(0.5, 0.6, 0.8), True),
        (Spread(0.5, 0.6, 0.7), False),
        (Spread(0.9, 1.0, 1.1), True),
        (Spread(0.1, 1.0, 9.0), True),
    ],
)
def test_a_mark_where_the_quartiles_overlap(after, overlap):
    before = Spread(0.8, 1.0, 1.2)
    assert Change("a", "cpu", "m", "ours", "us", before, after).within_noise == overlap


def results(**times):
    case = {"name": "a", "device": "cpu", "unit": "us", "times": {"blocked": times}}
    return {"cases": [case]}


def test_what_is_compared():
    before = results(ours=[1.0, 2.0, 3.0], jit=[2.0, 2.0, 2.0], eqx=[9.0])
    after = results(ours=[3.0, 4.0, 5.0], jit=[1.0, 1.0, 1.0], flat=[7.0])
    found = compare(before, after)
    rows = [(c.contender, c.before.median, c.after.median) for c in found.changes]
    assert rows == [("ours", 2, 4), ("jit", 2, 1)]
    assert [c.percent for c in found.changes] == [100, -50]
    assert found.gone == ["a (cpu), blocked, eqx"]
    assert found.new == ["a (cpu), blocked, flat"]
    before = results(ours=[1.0, 2.0, 3.0], jit=[2.0, 2.0, 2.0])
    after = results(ours=[3.0, 4.0, 5.0], jit=[1.0, 1.0, 1.0])
    (change,) = compare(before, after, ratios=True).changes
    assert (change.contender, change.before.median, change.after.median) == (
        "ours/jit",
        1,
        4,
    )


def test_figures_are_shown_in_their_unit():
    case = {
        "name": "a",
        "group": "g",
        "device": "cpu",
        "unit": "ms",
        "times": {"dispatch": {"ours": [1.0]}, "loop": {"ours": [12.34]}},
    }
    calls, studies = _grids.grids({"cases": [case]})
    assert calls.title.endswith("(cpu, microseconds a call)")
    assert [[c.text for c in row] for row in calls.rows] == [["a", "1.00 ±0%"]]
    assert [[c.text for c in row] for row in studies.rows] == [
        ["a: loop, ms", "12.3 ±0%"]
    ]


def test_quartiles():
    assert _results.spread([4.0, 1.0, 2.0, 3.0]) == (1.75, 2.5, 3.25)
    assert _grids._time_cell(entry([1.0, 2.0, 3.0], []), "blocked", "ours").text == (
        "2.00 ±25%"
    )
