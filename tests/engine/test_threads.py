"""Many threads may wrap, first call, call and clear jitted functions at once.

Each call has its own result, and its own error.
"""

import sys
import threading
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _facts, filter_jit
from tests.support.threads import in_threads


X = jnp.ones(2)


def test_errors_reach_their_own_thread():
    """Errors of callbacks and of `error_if` are raised in the call that caused them."""

    def fails(x):
        if x < 0:
            raise ZeroDivisionError(f"number {float(-x):.0f} failed")
        return x

    f = filter_jit(lambda x: jax.pure_callback(fails, x, x))
    g = filter_jit(lambda x: (jax.debug.callback(fails, x), x + 1)[1])
    h = filter_jit(lambda x, name: eqx.error_if(x, x < 0, f"{name} failed"))
    f(X[0]), g(X[0])

    def target(i):
        x = jnp.float32(-i - 1)
        for _ in range(4):
            for call, expected in (
                (lambda: f(x), f"number {i + 1} failed"),
                (lambda: g(x), f"number {i + 1} failed"),
                (lambda: h(x, f"<{i}>"), f"<{i}> failed"),
            ):
                with pytest.raises(Exception, match=expected):
                    call()
            assert f(-x) == i + 1

    in_threads(6, target)


def test_python_warns_no_more_often():
    """A trace leaves Python's filters of warnings alone, which threads share."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for n in range(2):
            filter_jit(lambda x, n: x)(X, n)
            warnings.warn("shown once", UserWarning, stacklevel=1)
    assert len(shown) == 1


@pytest.mark.skipif(
    getattr(sys.flags, "context_aware_warnings", False),
    reason="here, each thread has filters of its own",
)
def test_donating_in_two_threads_at_once_leaves_no_filter():
    """The one that begins first ends first: Python's filters are as they were."""
    begun, ended = [[threading.Event() for _ in range(2)] for _ in range(2)]

    def target(i):
        def fun(x):
            begun[i].set()
            (begun[1] if i == 0 else ended[0]).wait()
            return x.sum()  # cannot reuse `x`

        if i == 1:
            begun[0].wait()
        filter_jit(fun, donate="all")(jnp.ones(3 + i))
        ended[i].set()

    before = list(warnings.filters)
    in_threads(2, target)
    assert warnings.filters == before


def test_nothing_is_kept_for_a_thread_that_has_ended():
    before = len(_facts.compilations)
    in_threads(4, lambda i: filter_jit(lambda x: x + i)(X))
    assert len(_facts.compilations) == before
