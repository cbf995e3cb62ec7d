"""`insight.profile` says what a call costs, and what of it can be saved."""

import jax.numpy as jnp
import pytest

from eqx_fastjit import insight
from eqx_fastjit.insight import _profile
from eqx_fastjit.insight._profile import Timing
from tests.support.commands import command
from tests.support.programs import PROGRAMS
from tests.support.traces import count_traces


NAMES = ["eqx_fastjit", "jax.jit, flat arrays", "equinox.filter_jit"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(_profile, "_TIMING_SECONDS", 0.01)
    monkeypatch.setattr(_profile, "_SAMPLING_SECONDS", 0.05)


# --- warm calls ---


def test_a_warm_call_is_timed_under_each_jit(named):
    name, method = named
    found = insight.profile(method, jnp.ones(2))
    assert (found.name, sorted(found.timings)) == (name, sorted(NAMES))
    for timing in found.timings.values():
        assert 0 < timing.returns <= timing.ready
    text = str(found)
    parts = (*NAMES, "result ready after", "Where Python was", found.conclusion[:12])
    assert all(part in text for part in parts)


def test_the_function_is_traced_once_by_each_jit_and_donates_nothing():
    f, traces = count_traces(lambda x: x + 1, donate="all")
    x = jnp.ones(3)
    f(jnp.ones(3))
    insight.profile(f, x)
    assert not x.is_deleted()
    assert len(traces) == 3  # of this library, with and without donation; of Equinox


@pytest.mark.parametrize(
    ("equinox", "saves", "between", "matters"),
    [
        ([90, 90, 90, 90, 999], "60 us (67% of", "60 us to 60 us", "matters"),
        ([31, 31, 31, 31, 31], "1 us (3% of", "1 us to 1 us", "matters little"),
        ([28, 28, 40, 40, 40], "10 us (25% of", "-2 us to 10 us", "matters little"),
    ],
)
def test_the_conclusion_is_one_sentence(equinox, saves, between, matters):
    """Calls take 30 microseconds, 25 flat, and these in the rounds under Equinox."""
    rounds = [[x / 1e6 for x in each] for each in ([30] * 5, [25] * 5, equinox)]
    timings = [Timing(sorted(x)[2], sorted(x)[2], x) for x in rounds]
    text = _profile._conclusion(dict(zip(NAMES, timings, strict=True)))
    assert text == (
        "A call takes 30 us, where `jax.jit` of flat arrays takes 25 us, and "
        f"`equinox.filter_jit` {equinox[2]} us: it saves {saves} Equinox's call; "
        f"{between} in half of the rounds), so it {matters}."
    )


def test_without_pyinstrument_there_is_no_tree(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    text = str(insight.profile(lambda x: x, jnp.ones(2)))
    assert "A warm call" in text and "Where Python was" not in text


def test_rounds_are_interleaved_and_as_many_for_each(monkeypatch):
    monkeypatch.setattr(_profile, "_ROUND_SECONDS", 0.0)  # one call a round
    monkeypatch.setattr(_profile, "_TIMING_SECONDS", 0.0)
    made = []
    calls = {name: lambda name=name: made.append(name) for name in NAMES}
    found = _profile._time_calls(calls)
    assert made == NAMES * (1 + _profile._LEAST_ROUNDS)
    assert [len(x.rounds) for x in found.values()] == [_profile._LEAST_ROUNDS] * 3


# --- of a program ---


def test_a_program_is_told_where_python_was_and_where_its_time_went():
    ended = command("profile", PROGRAMS / "profiled.py")
    assert ended.stdout == "the program's own output\n"
    tree, outside, times = ended.stderr.strip().split("\n\n")
    assert " main  " in tree and " ones (outside of jit)  " in tree
    assert outside.startswith("Operations outside of jit ran for about ")
    assert "most of it in main" in outside
    assert "operations outside of jit" in times and "%), " in times


def test_a_program_that_does_not_import_jax():
    ended = command("profile", PROGRAMS / "no_jit.py")
    assert ended.stdout == "2\n" and "Where Python was" in ended.stderr
