"""`insight.profile` says what a call costs, and what of it can be saved."""

import statistics

import jax.numpy as jnp
import pytest

from eqx_fastjit import insight
from tests.support.commands import command
from tests.support.programs import PROGRAMS
from tests.support.traces import count_traces


NAMES = ["eqx_fastjit", "jax.jit, flat arrays", "equinox.filter_jit"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for name, seconds in (("TIMING", 0.01), ("SAMPLING", 0.05)):
        monkeypatch.setattr(f"eqx_fastjit.insight._profile._{name}_SECONDS", seconds)


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


def test_the_conclusion_is_one_sentence():
    """What is saved in a quarter of the rounds or more decides whether it matters."""
    found = insight.profile(lambda x: x + 1, jnp.ones(2))
    ours, _, theirs = (found.timings[name] for name in NAMES)
    saved = [b - a for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    low, _, _ = statistics.quantiles(saved, n=4, method="inclusive")
    ends = "so it matters little." if low < 0.05 * theirs.ready else "so it matters."
    assert found.conclusion.startswith("A call takes ")
    assert found.conclusion.endswith(ends) and ". " not in found.conclusion


def test_without_pyinstrument_there_is_no_tree(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    text = str(insight.profile(lambda x: x, jnp.ones(2)))
    assert "A warm call" in text and "Where Python was" not in text


# --- of a program ---


def test_a_program_is_told_where_python_was_and_where_its_time_went():
    ended = command("profile", PROGRAMS / "profiled.py", PYTHONFAULTHANDLER="")
    assert ended.stdout == "the program's own output\n"
    tree, outside, times = ended.stderr.strip().split("\n\n")
    assert " main  " in tree and " ones (outside of jit)  " in tree
    assert outside.startswith("Operations outside of jit ran for about ")
    assert "most of it in main" in outside
    assert "operations outside of jit" in " ".join(times.split())


def test_a_program_that_does_not_import_jax():
    ended = command("profile", PROGRAMS / "no_jit.py")
    assert ended.stdout == "2\n" and "Where Python was" in ended.stderr
