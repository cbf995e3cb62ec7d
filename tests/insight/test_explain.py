"""`explain`: the doctor's rows for one function, at any time, with its counts.

What the rows say is in test_rows.py, and what differs between two calls in
test_guard.py.
"""

import dataclasses
import functools
import gc
import time
import types
import warnings
import weakref
from unittest import mock

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from eqx_fastjit import filter_jit, insight
from eqx_fastjit.insight import explain
from tests.support.modules import Holder


def events_of(program):
    """What is compiled by a program, as the doctor's JSON has it."""
    with insight.doctor() as report:
        program()
    return report.to_dict()["run"]["events"]


def leaves_of(x):
    """What is said of an argument."""
    (event,) = events_of(lambda: filter_jit(lambda x: 1)(x))
    return event["signature"]


def only(explanation):
    """The one part of the one row."""
    (row,) = explanation.rows
    (part,) = row.parts
    return part


# --- counts ---


def test_nothing_was_compiled_again():
    f = filter_jit(lambda x: x + 1)
    f(np.ones(2))
    f(np.zeros(2))
    found = explain(f)
    assert (found.traces, found.compiles, found.rows) == (1, 1, ())
    assert str(found).endswith("nothing was compiled again")


def test_functions_of_one_line_are_told_apart():
    """By their columns, also where they refer to variables around them."""

    def both(y):
        return filter_jit(lambda x: x + y), filter_jit(lambda x: x * y)

    f, g = both(2.0)
    f(np.ones(2))
    g(np.ones(2))
    assert explain(f).compiles == explain(g).compiles == 1


def test_a_function_that_calls_itself_is_compiled_once():
    """An inner call that JAX has traced already does not end the event around it."""

    @filter_jit
    def total(x):
        half = x.shape[0] // 2
        return total(x[:half]) + total(x[half:]) if half else x.sum()

    events = events_of(lambda: total(np.ones(4, np.float32)))
    (event,) = [x for x in events if x["compile"] > 0]
    arrays = [x["shape"] for x in event["signature"] if x["kind"] == "array"]
    assert event["traced"] and arrays == [[4]]


def test_what_is_compiled_ahead_of_time_is_one_compilation():
    """The stages before are a part of it."""
    f = filter_jit(lambda x, n: x * n)
    for n in (1, 2):
        f.lower(np.ones(2), n).compile()
    found = explain(f)
    assert (found.traces, found.compiles, only(found).count) == (2, 2, 1)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_trace_that_ended_early_is_none(error):
    @filter_jit
    def f(x):
        raise error

    with pytest.raises(error):
        f(np.ones(2))
    found = explain(f)
    assert (found.traces, found.compiles, found.rows) == (0, 0, ())


def test_a_method_is_that_of_all_instances():
    class Scale(eqx.Module):
        by: int

        @filter_jit
        def apply(self, x):
            return x * self.by

    for by in (1, 2):
        Scale(by).apply(np.ones(2))
    assert only(explain(Scale(3).apply)).path == "self.by"


# --- texts ---


def test_what_is_verbose():
    """Ten edits of a row, or all; and what differs in each compilation."""

    @filter_jit
    def f(x, **kwargs):
        return x + 1

    for n in range(3):
        f(np.ones(2, np.float32), **{name: f"{name}{n}" for name in "abcdefghijkl"})
    short, long = str(explain(f)), str(explain(f, verbose=True))
    assert len(short.splitlines()) <= 16 < len(long.splitlines())
    assert "3 compilations of 1 program" in short and "2 more edits" in short
    assert "l 'l0', 'l1', 'l2' [label]" in long and "more edit" not in long
    assert "l 'l1', 'l2' [label]" in long
    assert max(map(len, short.splitlines())) <= 88


# --- arguments that are gone ---


def _changed_in_place(f):
    config = types.SimpleNamespace(rate=1)
    for _ in range(2):
        f(config, np.ones(2))
        config.rate += 1


def _dropped(f):
    for rate in (1, 2):
        f({"rate": rate}, np.ones(2))
        f.clear_cache()


def _unstable(f):
    """A flatten function makes other aux data each time."""
    for _ in range(2):
        f(Unstable(), np.ones(2))


@jax.tree_util.register_pytree_node_class
class Unstable:
    def tree_flatten(self):
        return (), object()

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls()


@pytest.mark.parametrize("program", [_changed_in_place, _dropped, _unstable])
def test_what_is_gone_is_said(program):
    """Nothing is kept alive for those who may ask later, but from then on described."""
    f = filter_jit(lambda config, x: x + 1)
    program(f)
    found = explain(f)
    assert found.gone > 0 and found.rows == ()
    assert (found.traces, found.compiles) == (2, 2)
    assert "not explained" in str(found)
    program(f)
    (row,) = explain(f).rows
    assert row.saves > 0 and row.compilations == 2


def test_a_static_that_was_changed_since_the_trace():
    """It is not described as it is now."""
    f = filter_jit(lambda config, x: x + 1)
    first, second = (types.SimpleNamespace(rate=rate) for rate in (1, 2))
    f(first, np.ones(2))
    f(second, np.ones(2))
    first.rate = 3
    assert explain(f).gone == 1


# --- events ---


def test_each_stage_has_the_statics_of_the_first():
    """Whatever is changed in place between them."""
    holder = Holder(jnp.ones(2), [1])

    def program():
        traced = filter_jit(lambda h: h.x + 1).trace(holder)
        holder.static.append(2)
        traced.lower().compile()

    events = [x for x in events_of(program) if x["ahead"]]
    texts = {leaf["text"] for x in events for leaf in x["signature"]}
    assert len(events) > 1 and "[1]" in texts and "[1, 2]" not in texts


def test_seconds_are_those_that_jax_tells():
    """Of functions of this library, and of others."""
    told = {}
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: told.update({name.rpartition("/")[2]: seconds})
    )

    def make():
        return lambda x: jax.lax.neg(x)

    for jit in (
        filter_jit,
        lambda f: filter_jit(f).lower(np.ones(2)).compile(),
        jax.jit,
    ):
        begun = time.time()
        events = events_of(lambda jit=jit: jit(make())(np.ones(2)))
        ended = time.time()
        stages = [[x[name] for x in events] for name in ("trace", "lower", "compile")]
        trace, lower, compile = map(sum, stages)
        assert trace + lower + compile <= ended - begun
        assert all(begun <= x["started"] <= ended for x in events)
        assert lower == told["jaxpr_to_mlir_module_duration"]
        assert compile == told["backend_compile_duration"]
        assert trace > 0 and any(x["traced"] for x in events)
        assert {x["function"]["number"] <= 0 for x in events} == {jit is jax.jit}
        assert {x["function"]["place"][0] for x in events} == {__file__}


def test_what_is_compiled_while_a_function_is_traced_is_inside():
    """Its seconds are its own, whether it is a jitted function or an operation."""
    inner = filter_jit(lambda x: x * 2)

    @filter_jit
    def f(x):
        with jax.ensure_compile_time_eval():
            return inner(x) * jax.jit(lambda y: y + 1)(np.ones(2))

    *events, outer = events_of(lambda: f(np.ones(2)))
    assert {x["function"]["number"] > 0 for x in events} == {True, False}
    assert {x["inside"] for x in events} == {outer["number"]}
    seconds = sum(x["trace"] + x["lower"] + x["compile"] for x in events)
    assert outer["nested"] == pytest.approx(seconds)


# --- any shapes ---


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=5))
def test_no_shapes_are_an_error_of_a_tool(shapes):
    """Axes come and go, and are of length zero: the call returns, with a reason."""
    f = filter_jit(lambda tree: jax.tree.map(jnp.sum, tree))
    before = explain(f).traces  # of other functions of this line
    with warnings.catch_warnings(), insight.guard(max_traces=1, warn=True):
        warnings.simplefilter("ignore", insight.RetraceWarning)
        for i, shape in enumerate(shapes):
            f({"x": jnp.ones(shape), **{str(j): jnp.ones(j) for j in range(i % 3)}})
    distinct = {(i % 3, tuple(shape)) for i, shape in enumerate(shapes)}
    assert explain(f).traces - before == len(distinct)
    assert str(explain(f, verbose=True))


def test_a_length_that_is_a_symbol_is_no_smaller_batch():
    f = filter_jit(lambda x: x.sum())
    (n,) = jax.export.symbolic_shape("n")
    f.trace(jax.ShapeDtypeStruct((n, 4), jnp.float32))
    f.trace(jax.ShapeDtypeStruct((8, 4), jnp.float32))
    assert str(explain(f, verbose=True))
    assert all(x.rule != "batch" for row in explain(f).rows for x in row.parts)


# --- calls in words: nothing of the user's ---


X = np.ones((4, 2), np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    rate: object


class Hostile:
    """Everything about it raises."""

    def __repr__(self):
        raise AssertionError

    __str__ = __hash__ = __len__ = __bool__ = __repr__

    def __eq__(self, other):
        raise AssertionError

    def __getattr__(self, name):
        raise AssertionError(name)


def test_a_class_that_raises_is_told_by_its_name():
    deep = functools.reduce(lambda x, _: Config(x), range(400), 0.1)
    for x, text in (
        (Hostile(), "<Hostile>"),
        (deep, "<Config>"),
        (Holder(X, [Hostile(), {1: Hostile()}]), "<list>"),
    ):
        assert text in [leaf["text"] for leaf in leaves_of(x)]


def test_no_value_of_an_array_is_in_it():
    values = np.full(2, 123.45)  # which is in no id
    assert "123.45" not in str(leaves_of([values, Config(values)]))


@pytest.mark.parametrize("cls", [jax.Array, np.ndarray, jax.ShapeDtypeStruct])
def test_a_static_that_claims_to_be_an_array(cls):
    """A mock has no shape. JAX takes none for an array."""
    claims = mock.Mock(spec=cls)
    for x in (claims, Config(claims)):
        assert leaves_of(x)[0]["kind"] == "static"


def test_nothing_of_the_users_is_kept():
    class Tag:
        pass

    tag = Tag()
    leaves = leaves_of(Holder(X, tag))
    died = weakref.ref(tag)
    del tag
    jax.clear_caches()
    gc.collect()
    assert died() is None
    paths = [x["path"] for x in leaves if x["kind"] != "configuration"]
    assert paths == ["x", "x.x", "x.static"]
