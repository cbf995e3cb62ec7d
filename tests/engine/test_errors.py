"""Errors: of the function, of the device, of tracers, and what the next call does.

Exceptions have the types that they have under Equinox, `eqx.error_if` raises at the
call that failed, and after any of them the next call is right.
"""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from tests.support.programs import run_program
from tests.support.traces import count_traces


X = jnp.array(2.0)


# --- `eqx.error_if` ---


@pytest.fixture
def checked():
    return count_traces(lambda x, y=1: (eqx.error_if(x, x < 0, "negative"), y))


def test_error_if_raises_at_the_call(checked):
    """Each failing call raises and keeps its trace, and others are right."""
    f, traces = checked
    for _ in range(3):
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(-X)
        assert f(X)[0] == 2
    assert len(traces) == 1
    assert f(X, "static")[1] == "static"


def test_both_stacks_are_shown():
    """The error shows where `error_if` stands and where the call was made."""

    @filter_jit
    def the_inner_function(x):
        return eqx.error_if(x, x < 0, "a text of this test alone")

    the_inner_function(X)
    for _ in range(2):
        with pytest.raises(eqx.EquinoxRuntimeError, match="this test alone") as info:
            the_inner_function(-X)
        inside = str(info.value).partition("Below is the stack inside of JIT")[2]
        assert "eqx.error_if(x, x < 0" in inside
        assert "pytest" not in inside
        assert info.value.__suppress_context__  # XLA's error says the same


def test_error_if_within_other_functions(checked):
    """Within jitted functions, transforms and loops it is the same error."""
    f, _ = checked
    outer = filter_jit(lambda x: f(x)[0] * 2)
    assert outer(X) == 4
    calls = [
        lambda: outer(-X),
        lambda: jax.jit(outer)(-X),
        lambda: jax.grad(outer)(-X),
        lambda: jax.vmap(outer)(-X[None]),
        lambda: filter_jit(eqx.filter_value_and_grad(outer))(-X),
        lambda: jax.lax.scan(lambda c, _: (outer(c), None), -X, length=2),
    ]
    # Outside of a jitted function, JAX's own error may be raised.
    expected = (eqx.EquinoxRuntimeError, ValueError, jax.errors.JaxRuntimeError)
    for call in calls:
        with pytest.raises(expected, match="negative"):
            jax.block_until_ready(call())  # on a GPU, `jax.jit` itself returns early
    assert outer(X) == 4


def test_what_is_logged(caplog):
    """JAX's record of a callback is dropped in our calls, as Equinox drops it."""

    def fails(x):
        raise ZeroDivisionError("mine")

    def logged(jit, f):
        caplog.clear()
        with pytest.raises(Exception, match=r"negative|mine"):
            jax.block_until_ready(jit(f)(-X))
        return "pure_callback failed" in caplog.text

    for f in (
        lambda x: eqx.error_if(x, x < 0, "negative"),
        lambda x: jax.pure_callback(fails, x, x),
    ):
        jits = eqx.filter_jit, filter_jit, jax.jit
        assert [logged(jit, f) for jit in jits] == [False, False, True]


def test_a_malformed_record_is_no_error_of_the_caller(monkeypatch):
    """Of JAX's logger: what cannot be formatted is the affair of Python's handlers."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.getLogger("jax._src.callback")
    monkeypatch.setattr(logger, "propagate", False)
    logger.error("%d of %d", "one")


@pytest.mark.parametrize("template", ["{trace}: {msg}", "{", None])
def test_equinox_with_another_text(monkeypatch, template):
    """Whatever fields its text has, the error is Equinox's, with the message."""
    monkeypatch.setattr("equinox._jit._on_error_msg", template)
    with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
        filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))(-X)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("raise", "EquinoxRuntimeError"), ("nan", "nan"), ("off", "-2.0")],
)
def test_eqx_on_error(value, expected):
    """`EQX_ON_ERROR` has the effect that it has under Equinox."""
    out = run_program("on_error.py", check=False, EQX_ON_ERROR=value)
    if value == "off" and "Unrecognised value for `EQX_ON_ERROR`" in out.stderr:
        pytest.skip("not in this Equinox")
    assert out.stdout.split() == ["2.0", "2.0", expected]


@pytest.mark.parametrize("command", ["c\n", "q\n"])
def test_eqx_on_error_breakpoint(command):
    """`EQX_ON_ERROR=breakpoint` opens a debugger, after which the program goes on."""
    out = run_program(
        "on_error.py", check=command == "c\n", EQX_ON_ERROR="breakpoint", stdin=command
    )
    assert out.stdout.startswith("2.0 2.0")
    assert "Opening a breakpoint" in out.stdout and "negative" in out.stdout
    assert "pure_callback failed" not in out.stderr


# --- of the function ---


class Unprintable(ValueError):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        KeyError("no"),
        KeyboardInterrupt("no"),
        SystemExit(3),
        RuntimeError("\ud800"),
        Unprintable(),
    ],
)
def test_an_exception_while_tracing(error):
    """It is raised as it is, each time, and leaves nothing behind."""
    traces, fails = [], True

    @filter_jit
    def f(x):
        traces.append(None)
        if fails:
            raise error
        return x + 1

    for n in (1, 2):
        with pytest.raises(type(error)) as info:
            f(X)
        assert info.value is error
        assert len(traces) == n
    fails = False
    for _ in range(2):
        assert f(X) == 3
    assert len(traces) == 3


def test_endless_recursion():
    """A function that calls itself without end is a `RecursionError`, as in JAX."""

    @filter_jit
    def endless(x):
        return endless(x) + 1

    g = filter_jit(lambda x, n: x if n == 0 else g(x + 1, n - 1))
    for _ in range(2):
        with pytest.raises(RecursionError, match=r"endless|maximum recursion depth"):
            endless(X)
    assert g(X, 5) == 7
    with pytest.raises(RecursionError):
        g(X, -1)
    assert g(X, 6) == 8


# --- of tracers ---


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda x: 1 if x > 0 else 2, jax.errors.TracerBoolConversionError),
        (lambda x: float(x), jax.errors.ConcretizationTypeError),
        (lambda x: np.asarray(x), jax.errors.TracerArrayConversionError),
        (lambda x: range(10)[x], jax.errors.TracerIntegerConversionError),
    ],
)
@pytest.mark.parametrize(
    ("part", "path"),
    [
        (lambda m, y: y["key"], "y['key']"),
        (lambda m, y: m.layers[0].weight[0, 0].astype(int), "model.layers[0].weight"),
    ],
)
def test_tracer_errors_name_the_argument(read, error, part, path):
    """JAX's errors about tracers name the argument with its path, and the function."""

    def a_name_of_this_test(model, y):
        return read(part(model, y))

    f = filter_jit(a_name_of_this_test)
    with pytest.raises(error) as info:
        f(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), {"key": jnp.array(1)})
    assert path in str(info.value)
    assert "a_name_of_this_test" in str(info.value)


def test_a_leaked_tracer():
    """A tracer that outlives its trace is JAX's error."""
    leaked = []

    @filter_jit
    def f(x):
        leaked.append(x)
        return x + 1

    f(X)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        leaked[0] + 1
    with pytest.raises(jax.errors.UnexpectedTracerError):
        filter_jit(lambda y: y + leaked[0])(X)


@pytest.mark.parametrize("result", [{1: X, "a": X}, {X.aval: 1, 2: X}])
def test_results_that_are_no_pytree(result):
    """A dictionary whose keys cannot be sorted cannot be returned."""
    with pytest.raises((TypeError, ValueError)):
        filter_jit(lambda x: result)(X)


# --- what JAX says ---


def test_a_cache_miss_is_explained_by_the_users_function(caplog):
    """`jax.explain_cache_misses` names the function and its file, and no statics."""

    def my_very_own_function(x, secret):
        return x

    f = filter_jit(my_very_own_function)
    with jax.explain_cache_misses(True), caplog.at_level(logging.WARNING):
        for secret in ("static-value", "static-value too"):
            f(jnp.ones(2), secret)
    assert "my_very_own_function" in caplog.text and __file__ in caplog.text
    assert "static-value" not in caplog.text


@pytest.mark.one_engine  # of a call that Python makes, Python shows the frame
def test_tracebacks_begin_with_the_users_code():
    """JAX's filtering of tracebacks leaves out the frames of this library."""

    @filter_jit
    def f(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as info:
        f(X)
    files = {str(entry.path) for entry in info.traceback}
    own = {file.rpartition("/")[2] for file in files if "eqx_fastjit/_" in file}
    assert own <= {"_reference.py"}  # which is above JAX, where the extension is not
