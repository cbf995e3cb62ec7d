"""`guard`: an error, or a warning, at a call that traces too often.

Promise 38 of docs/reliability.md.
"""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit.insight import guard, RetraceError, RetraceWarning


def make():
    @eqx_fastjit.filter_jit
    def f(x):
        return jnp.sin(x).sum()

    return f


def test_a_trace_over_the_limit_raises_before_it():
    f = make()
    with guard(f, max_traces=1), pytest.raises(RetraceError) as raised:
        f(np.ones(2))
        f(np.ones(3))
    text = str(raised.value)
    assert "may be traced at most 1 time here" in text
    assert "A batch is smaller" not in text and "`x` has several shapes" in text
    assert re.search(r"test_guard.py:\d+", text)
    f(np.ones(3))  # afterwards it can be called


def test_a_call_that_was_refused_is_refused_again_for_the_same_reason():
    f = make()
    f(np.ones(2))
    with guard(f, max_traces=0):
        for _ in range(2):
            with pytest.raises(RetraceError, match="`x` has several shapes"):
                f(np.ones(3))


def test_a_first_call_is_explained():
    f = make()
    with (
        guard(max_traces=0),
        pytest.raises(RetraceError, match=r"first call, at .*x: "),
    ):
        f(np.ones(2))


def test_it_is_about_one_function():
    f, g = make(), eqx_fastjit.filter_jit(lambda x: x + 1)
    with guard(f, max_traces=0):
        g(np.ones(2))


def test_functions_of_one_line_count_as_one():
    with guard(max_traces=1), pytest.raises(RetraceError, match="created again"):
        for _ in range(2):
            eqx_fastjit.filter_jit(lambda x: x + 1)(np.ones(2))


def test_a_warning_stands_at_the_call():
    f = make()
    with guard(f, max_traces=0, warn=True), pytest.warns(RetraceWarning) as warned:
        f(np.ones(2))
    assert warned[0].filename == __file__


def test_a_decorator_counts_each_call_anew():
    f = make()

    @guard(f, max_traces=1)
    def call(n):
        f(np.ones(n))

    call(2)
    call(3)


@pytest.mark.parametrize("limit", [-1, "a", 1.5, None])
def test_bad_limits(limit):
    with pytest.raises(ValueError, match=re.escape(f"max_traces={limit!r}")):
        guard(max_traces=limit)
