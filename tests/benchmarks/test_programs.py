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


def test_a_program_has_the_pairs_that_were_asked_for(monkeypatch):
    """However clear the first ones are."""
    order = []
    monkeypatch.setattr(whole, "_process", lambda name, what: order.append(what) or 1.0)
    assert len(whole.compare("x", 12)["seconds"]["ours"]) == 12
    assert order[:4] == ["eqx", "ours", "ours", "eqx"]  # neither is always first


def test_tables(results):
    seconds = {"eqx": [4.0] * 8, "ours": [2.0] * 8}
    entry = {"title": "a program", "seconds": seconds}
    more = {"title": "more", "seconds": {x: y * 2 for x, y in seconds.items()}}
    text = " ".join(whole.markdown({**results, "programs": [entry, more]}).split())
    assert "| a program | 4.00 | 2.00 | **0.50" in text
    assert "8 pairs of each program. Made by" in text
    seconds = {"anew": [2.0], "cached": [1.0], "portable": [0.5], "compiled": [0.1]}
    entry = {"name": "f", "seconds": seconds, "calls": [0.9, 1.0, 3.0]}
    text = " ".join(startup.markdown({**results, "programs": [entry]}).split())
    assert "| `f` | 2.00 | 0.50 | 0.25 | 0.05 | 1.00 |" in text
