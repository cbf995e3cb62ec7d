"""`guard`: an error, or a warning, where a call compiles in vain or traces too often.

Promise 38 of docs/reliability.md.
"""

import re

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


# --- without a number: programs that a function had ---


def test_a_program_that_it_had_raises_before_it_is_compiled():
    """With the rule and the edit; afterwards it can be called."""
    f = make()
    with guard(f):
        f(X, 1)
        with pytest.raises(RetraceError) as raised:
            f(X, 2)
    title, edit = str(raised.value).splitlines()
    assert re.fullmatch(
        r"f \(.*test_guard.py:\d+\) is compiled for a program that it had:", title
    )
    assert edit.strip() == "n 1, 2 [number]: jnp.asarray(n)"
    assert explain(f).compiles == 1
    assert f(X, 2) == 2 * f(X, 1)


def test_a_refused_call_is_refused_for_the_same_reason():
    f, texts = make(), []
    with guard(f):
        f(X, 1)
        for _ in range(2):
            with pytest.raises(RetraceError) as raised:
                f(X, 2)
            texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ((X, 1), (X, 2), "number"),
        ((X, 1, "a"), (X, 1, "b"), "label"),
        ((X, 1, object()), (X, 1, object()), "object"),
        ((X, 1, optax.sgd(1.0)), (X, 1, optax.sgd(1.0)), "optimiser"),
        ((X, jnp.asarray(1.0)), (X, jnp.float32(1.0)), "weak-type"),
    ],
)
def test_the_rule_is_told(first, second, rule):
    """Also of a call from before the guard."""
    f = make()
    f(*first)
    with guard(f), pytest.raises(RetraceError, match=rf"\[{rule}\]: "):
        f(*second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((X,), (X[:1],)),
        ((X,), (X.astype(np.int32),)),
        ((X, 1, True), (X, 1, False)),
        ((X,), (2 * X,)),
    ],
    ids=["shape", "dtype", "flag", "the same call"],
)
def test_other_programs_and_first_ones_pass(first, second):
    f = make()
    with guard(f):
        f(*first)
        f(*second)


def test_a_function_that_is_made_again():
    """Without a function, the guard applies to all."""
    with guard(), pytest.raises(RetraceError, match=r"\[function\]: make it once"):
        for n in (1, 2):
            eqx_fastjit.filter_jit(lambda x, n=n: x + n)(X)


# --- with a number of traces ---


def test_a_trace_over_the_limit_raises_before_it():
    f = make()
    with guard(f, max_traces=1), pytest.raises(RetraceError) as raised:
        f(X)
        f(X[:1])
    text = str(raised.value)
    assert "may be traced at most 1 time here" in text
    assert "x float32[2], float32[1]" in text
    assert re.search(r", at .*test_guard.py:\d+", text)
    f(X[:1])  # afterwards it can be called


def test_a_call_that_was_refused_is_refused_again_for_the_same_reason():
    f = make()
    f(X)
    with guard(f, max_traces=0):
        for _ in range(2):
            with pytest.raises(RetraceError, match=r"x float32\[2\], float32\[1\]"):
                f(X[:1])


@pytest.mark.parametrize(("limit", "why"), [(0, "first call"), (1, "traced again")])
def test_why_a_trace_is_one_too_many(limit, why):
    f = make()
    with guard(max_traces=limit), pytest.raises(RetraceError, match=rf"\n  {why}, at "):
        f(X)
        f(X[:1])


def test_functions_of_one_line_count_as_one():
    with guard(max_traces=1), pytest.raises(RetraceError, match="made again"):
        for _ in range(2):
            eqx_fastjit.filter_jit(lambda x: x + 1)(X)


# --- both ---


@pytest.mark.parametrize("limit", [{"max_traces": 1}, {}])
def test_it_is_about_one_function(limit):
    f, g = make(), eqx_fastjit.filter_jit(lambda x, n: x * n)
    with guard(f, **limit):
        for n in (1, 2):
            g(X, n)
    f(X, 1)
    f(X, 2)  # and over


@pytest.mark.parametrize("limit", [{"max_traces": 1}, {}])
def test_a_warning_stands_at_the_call(limit):
    f = make()
    with guard(f, **limit, warn=True), pytest.warns(RetraceWarning) as warned:
        f(X, 1)
        f(X, 2)
    assert [w.filename for w in warned] == [__file__]


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
