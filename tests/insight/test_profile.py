"""`insight.profile` says what a call costs, and what of it can be saved."""

from pathlib import Path

import equinox as eqx
import jax
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
    monkeypatch.setattr(_profile, "_SAMPLING_SECONDS", 0.2)


# --- warm calls ---


def test_a_warm_call_is_timed_under_each_jit(named):
    name, method = named
    found = insight.profile(method, jnp.ones(2))
    assert found.name == name
    assert sorted(found.timings) == sorted(NAMES)
    for timing in found.timings.values():
        assert 0 < timing.returns <= timing.ready
    text = str(found)
    assert all(name in text for name in NAMES)
    assert "result ready after" in text
    tree = text.partition("Where Python was")[2]
    assert all(f" {name}  " in tree for name in ("eqx_fastjit", "equinox", "jax_jit"))


def test_every_contender_blocks_on_the_same_result():
    """To block on a Module takes time that is none of the call's."""
    target = _profile.target(lambda x: eqx.Partial(jnp.add, x), (jnp.ones(2),), {})
    calls = _profile._contenders(target)
    for name in NAMES:
        leaves = jax.tree_util.tree_flatten_with_path(calls[name]())[0]
        assert "name='args'" in str([path for path, _ in leaves])


def test_functions_of_jax_jit_with_static_arguments():
    f = jax.jit(lambda x, n: x * n, static_argnums=1)
    assert sorted(insight.profile(f, jnp.ones(2), 3).timings) == sorted(NAMES)


def test_the_function_is_traced_once_by_each_jit_and_donates_nothing():
    f, traces = count_traces(lambda x: x + 1, donate="all")
    x = jnp.ones(3)
    f(jnp.ones(3))
    insight.profile(f, x)
    assert not x.is_deleted()
    assert len(traces) == 3  # of this library, with and without donation; of Equinox


@pytest.mark.parametrize(
    "ours, flat, equinox, parts",
    [
        (
            30e-6,
            25e-6,
            90e-6,
            ["A call takes 30 us, where `jax.jit` of flat arrays takes 25 us"]
            + ["`equinox.filter_jit` 90 us: it saves 60 us (67% of Equinox's call;"]
            + ["so it matters: ", "10,000 calls save 600 ms."],
        ),
        (10e-3, 9.9e-3, 10.1e-3, ["saves 100 us", "(1% of", "so it matters little: "]),
        (1e-3, 2e-3, 1e-3, ["saves <1 us (0% of", "so it matters little: "]),
    ],
    ids=["matters", "little", "noise"],
)
def test_the_conclusion_is_one_sentence(ours, flat, equinox, parts):
    each = {
        name: Timing(seconds, seconds, (*[seconds] * 4, 9 * seconds))
        for name, seconds in zip(NAMES, (ours, flat, equinox), strict=True)
    }
    text = _profile._conclusion(each)
    assert all(part in text for part in parts)
    assert text.endswith(".") and ". " not in text


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

JAX = Path(jax.__file__).parent / "_src"
ENGINE = Path(_profile.__file__).parents[1]
ARANGE, JITTED = ("arange", JAX / "numpy" / "lax_numpy.py"), ("call", JAX / "pjit.py")


@pytest.mark.parametrize(
    ("called", "marked"),
    [
        ([ARANGE, JITTED], 2),
        ([JITTED], None),  # by `jax.jit`
        ([("call", ENGINE / "insight" / "_device.py"), JITTED], None),
        ([("traced", ENGINE / "_traced.py"), ("step", "a.py"), ARANGE], None),
        ([("device_get", JAX / "api.py")], None),
    ],
)
def test_operations_are_marked_where_they_are_outside_of_jit(called, marked):
    stack = [("run", ENGINE / "cli" / "_script.py"), ("main", "a.py"), *called]
    assert _profile._operation_at([f"{x}\0{file}\0001" for x, file in stack]) == marked


def test_a_program_is_told_where_python_was_and_whether_dispatch_matters():
    ended = command("profile", PROGRAMS / "profiled.py")
    assert ended.stdout == "the program's own output\n"
    tree, outside, device = ended.stderr.strip().split("\n\n")
    assert " main  " in tree and " ones (outside of jit)  " in tree
    assert outside.startswith("Operations outside of jit ran for about ")
    assert "most of it in main" in outside
    assert device.startswith("The device was ")


def test_a_program_that_does_not_import_jax():
    ended = command("profile", PROGRAMS / "no_jit.py")
    assert ended.stdout == "2\n" and "Where Python was" in ended.stderr
