"""`guard`: an error or a warning where a call compiles in vain, or traces too often."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqx_fastjit
from eqx_fastjit.insight import explain, guard, RetraceError, RetraceWarning


def make():
    @eqx_fastjit.filter_jit
    def f(x, n=0, flag=None):
        return jnp.cos(x).sum() if flag else jnp.sin(x).sum() * n

    return f


X = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ((X, 1), (X, 2), "number"),
        ((X, 1, "a"), (X, 1, "b"), "label"),
        ((X, 1, object()), (X, 1, object()), "object"),
        ((X, 1, Fraction(1)), (X, 1, Fraction(2)), "object"),  # it has no `__dict__`
        ((X, 1, partial(abs)), (X, 1, partial(abs)), "function"),
        ((X, 1, optax.sgd(1.0)), (X, 1, optax.sgd(1.0)), "optimiser"),
        ((X, jnp.asarray(1.0)), (X, jnp.float32(1.0)), "weak-type"),
        ((X,), (X[:1],), None),
        ((X, 1, True), (X, 1, False), None),
        ((X,), (2 * X,), None),
    ],
)
def test_the_rule_is_told(first, second, rule):
    """Also of a call from before the guard. Other programs, and first ones, pass."""
    f = make()
    f(*first)
    refused = pytest.raises(RetraceError, match=rf"\[{rule}\]: ")
    with guard(f), refused if rule else contextlib.nullcontext():
        f(*second)


limits = pytest.mark.parametrize("limit", [{"max_traces": 1}, {}])


@limits
def test_a_call_is_refused_before_it_is_compiled(limit):
    """With the edit; again for the same reason; afterwards it can be called."""
    f, texts = make(), []
    with guard(f, **limit):
        f(X, 1)
        for _ in range(2):
            with pytest.raises(RetraceError) as raised:
                f(X, 2)
            texts.append(str(raised.value))
    title, why, edit = texts[0].splitlines()
    says = "may be traced at most 1 time here." if limit else "is compiled for a "
    assert re.match(rf"f \(.*test_guard.py:\d+\) {re.escape(says)}", title)
    assert re.fullmatch(r"  [a-z ]+, at .*test_guard.py:\d+", why)
    assert edit == "  n 1, 2 [number]: jnp.asarray(n)"
    assert texts[0] == texts[1]
    assert explain(f).compiles == 1
    assert f(X, 2) == 2 * f(X, 1)


def test_a_program_of_long_ago_is_known():
    f = make()
    for n in range(1, 36):
        f(np.ones(n), 1)
    with guard(f), pytest.raises(RetraceError, match=r"\[number\]"):
        f(np.ones(1), 2)


@limits
def test_a_function_that_is_made_again(limit):
    """Those of one line count as one. Without a function, the guard applies to all."""
    with guard(**limit), pytest.raises(RetraceError, match=r"\[function\]: make it"):
        for n in (1, 2):
            eqx_fastjit.filter_jit(lambda x, n=n: x + n)(X)


@limits
def test_it_is_about_one_function_and_thread(limit):
    f, g = make(), eqx_fastjit.filter_jit(lambda x, n: x * n)
    with guard(f, **limit), ThreadPoolExecutor(1) as other:
        for n in (1, 2):
            g(X, n)
            other.submit(f, X, n).result()
    for n in (3, 4):  # and over
        f(X, n)


@limits
def test_a_warning_stands_at_the_call(limit):
    f = make()
    with guard(f, **limit, warn=True), pytest.warns(RetraceWarning) as warned:
        f(X, 1)
        f(X, 2)
    assert [w.filename for w in warned] == [__file__]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([(X,)], "first call, at "),
        ([(X, jnp.float32(1)), (X, jnp.asarray(1.0))], "n weakly"),
        ([(X, 0.0), (X, -0.0)], "n 0.0, -0.0"),
        ([(X, 1), (X, X)], "n 1, float32[2]"),
        ([(X, [X]), (X, [X, X])], "n list"),
        ([(X, 1, {"a": X}), (X, 1, {"b": X})], "flag['a']"),
        ([(X, "a" * 99), (X, "a" * 98)], "n 'aaa"),
        ([(X, 1, "a"), (X, 2, "b"), (X, 3, "a")], "n 1, 3"),  # the nearest call
    ],
)
def test_what_differs(calls, text):
    f = eqx_fastjit.filter_jit(lambda x, n=0, flag=None: x)
    with guard(f, max_traces=len(calls) - 1), pytest.raises(RetraceError) as raised:
        for args in calls:
            f(*args)
    assert f"\n  {text}" in str(raised.value)


def test_a_decorator_counts_each_call_anew():
    f = make()

    @guard(f, max_traces=1)
    def call(n):
        f(np.ones(n, np.float32))

    call(2)
    call(3)


@pytest.mark.parametrize("limit", [-1, "a", 1.5])
def test_bad_limits(limit):
    with pytest.raises(ValueError, match=re.escape(f"max_traces={limit!r}")):
        guard(max_traces=limit)


def test_a_guard_is_entered_once():
    """The inner exit would end the outer one; a new guard within it is as usual."""
    f = eqx_fastjit.filter_jit(lambda x: x)
    known = guard(f, max_traces=0)
    with known:
        with pytest.raises(RuntimeError, match="entered already"), known:
            pass
        with guard(f):
            pass
        with pytest.raises(RetraceError):
            f(X)
    with known:  # again, later
        pass
