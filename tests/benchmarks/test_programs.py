"""Whole programs, and what exporting saves, without the processes that are timed."""

import pytest

import eqx_fastjit
from benchmarks import whole
from benchmarks.programs import PROGRAMS
from scripts import startup


pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same_with_eqx_fastjit(name, as_users_have_it):
    expected = PROGRAMS[name](5)
    eqx_fastjit.install()
    assert PROGRAMS[name](5) == pytest.approx(expected, rel=1e-4)
    assert PROGRAMS[name].__doc__


@pytest.mark.parametrize(
    ("ours", "pairs"),
    [
        ([0.5] * 30, 8),  # clearly faster
        ([0.5, 2.0] * 15, 30),
        ([2.0] + [0.5] * 29, 12),  # seven of eight are not enough
    ],
)
def test_pairs_are_run_until_the_interval_excludes_1(ours, pairs, monkeypatch):
    order, times = [], iter(ours)

    def process(name, what):
        order.append(what)
        return 1.0 if what == "eqx" else next(times)

    monkeypatch.setattr(whole, "_process", process)
    assert len(whole.compare("x", 30)["seconds"]["ours"]) == pairs
    assert order[:4] == ["eqx", "ours", "ours", "eqx"]  # neither is always first


def test_tables(results):
    seconds = {"eqx": [4.0] * 8, "ours": [2.0] * 8}
    entry = {"title": "a program", "seconds": seconds}
    text = whole.markdown({**results, "programs": [entry]})
    assert "| a program | 4.00 | 2.00 | **0.50" in text
    seconds = {"anew": [2.0], "cached": [1.0], "portable": [0.5], "compiled": [0.1]}
    entry = {"name": "f", "seconds": seconds, "calls": [0.9, 1.0, 3.0]}
    text = startup.markdown({**results, "programs": [entry]})
    assert "| `f` | 2.00 | 0.50 | 0.25 | 0.05 | 1.00 |" in text
