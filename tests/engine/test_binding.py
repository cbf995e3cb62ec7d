"""Every spelling of a call is one call: keywords, defaults, `*args`, errors.

An argument may be passed by position, by keyword or by default without a new trace,
and wrong ones raise a `TypeError` that names the function and says what is wrong.
"""

import functools
import inspect
import random
import sys

import equinox as eqx
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from tests.support.traces import count_traces


X = jnp.array(2.0)


# --- spellings ---


def test_an_omitted_default_is_the_same_call():
    """A default that is omitted, and the same value given, share a trace."""

    traces = []

    @filter_jit
    def f(x, n=2, options=(1, "a"), *, k=None):
        traces.append(None)
        return x**n

    calls = [
        f(X),
        f(X, 2),
        f(X, n=2),
        f(X, 2, (1, "a")),
        f(X, k=None),
        f(options=(1, "a"), k=None, x=X, n=2),
    ]
    assert calls == [4.0] * 6
    assert len(traces) == 1
    assert f(X, 2.0) == 4 and f(X, k=1.0) == 4
    assert len(traces) == 3


def test_keywords_in_any_order():
    """Keywords and positions are bound as Python binds them, and fail alike."""

    def fun(a, /, b, c=3, *rest, d, e=5, bb=6, **more):
        return a, b, c, rest, d, e, bb, more

    def twice_named(a, /, b=2, *, c=3, **more):
        return a, b, c, more

    class Name(str):
        pass

    rng = random.Random(0)
    makes = [sys.intern, lambda name: "".join(list(name)), Name]
    n_errors = 0
    for plain in (fun, twice_named):
        f = filter_jit(plain)
        for _ in range(80):
            names = rng.sample(["a", "b", "c", "d", "e", "bb", "ee"], rng.randint(0, 6))
            keywords = {rng.choice(makes)(name): rng.randint(0, 1) for name in names}
            args = [rng.randint(0, 1) for _ in range(rng.randint(0, 4))]
            try:
                expected = plain(*args, **keywords)
            except TypeError as e:
                n_errors += 1
                with pytest.raises(TypeError) as info:
                    f(*args, **keywords)
                assert str(info.value) == str(e)
            else:
                assert f(*args, **keywords) == expected
    assert 20 < n_errors < 140


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((X,), {}),
        ((X, 2), {"key": 1}),
        ((X,), {"key": 1, "other": 2}),
        ((X,), {"x": X, "key": 1}),
        ((X,), {"kye": 1}),
    ],
)
def test_wrong_arguments_are_an_error_that_names_the_function(args, kwargs):
    """Missing, surplus and repeated arguments raise a `TypeError`, as in Python."""

    def f(x, *, key):
        return x

    class Model(eqx.Module):
        def plain(self, x, *, key):
            return x

        jitted = filter_jit(plain)

    model = Model()
    for plain, jitted in ((f, filter_jit(f)), (model.plain, model.jitted)):
        with pytest.raises(TypeError) as expected:
            plain(*args, **kwargs)
        with pytest.raises(TypeError) as found:
            jitted(*args, **kwargs)
        message = str(expected.value).replace("plain", "jitted")
        assert str(found.value).replace("plain", "jitted") == message


@pytest.mark.parametrize(
    "name", ["self", "fun", "args", "kwargs", "instance", "bind", "p0", "p1", "values"]
)
def test_any_name_of_a_parameter(name):
    """Parameters may have the names of this library's own."""
    namespace = {}
    exec(f"def f({name}, n=2, **more): return {name} * n, more", namespace)
    f = filter_jit(namespace["f"])
    assert f(X)[0] == f(**{name: X})[0] == 4
    assert f(X, n=3, other=1) == (6, {"other": 1})


# --- defaults ---


def test_defaults_are_those_at_the_time_of_wrapping():
    """A function that is wrapped again after a change has its new defaults."""

    def f(x, n=1, *, m=1):
        return x * n * m

    assert filter_jit(f)(X) == 2 and type(filter_jit(f)(2)) is int
    f.__defaults__ = (1.0,)
    assert type(filter_jit(f)(2)) is float
    f.__defaults__ = (5,)
    assert filter_jit(f)(X) == 10
    f.__kwdefaults__ = {"m": 3}
    again = filter_jit(f)
    assert again(X) == 30 and again(X, 2) == 12
    assert inspect.signature(again).parameters["n"].default == 5


def test_a_default_that_is_changed_by_the_function():
    """A trace has a mutable default as it was in the trace."""

    def f(x, acc=[]):  # noqa: B006
        acc.append(1)
        return x * len(acc)

    g = filter_jit(f)
    assert [float(g(X, [])), float(g(X, []))] == [2, 2]


def test_a_signature_that_is_not_the_functions_own():
    """What the function accepts counts, and not `__signature__` or `__wrapped__`."""

    def f(*args, n=5):
        return args[0] * len(args) * n

    f.__signature__ = inspect.signature(lambda x, n=3: None)

    def g(x, n=3):
        return x * n

    @functools.wraps(g)
    def h(x, n=5):
        return x * n

    for jit in (eqx.filter_jit, filter_jit):
        assert jit(f)(X) == 10
        assert jit(f)(X, 7) == 20
        assert jit(h)(X, 3) == 6
        assert jit(h)(X) == 10


def test_partials_bind_what_is_left():
    """A `functools.partial` is called with what it leaves open."""

    def f(x, n, *, m=1):
        return x * n + m

    g = filter_jit(functools.partial(f, n=3))
    assert g(X) == 7 and g(X, m=2) == 8 and g(X, n=5) == 11
    with pytest.raises(TypeError):
        g(X, 4)


def test_builtins_without_a_signature():
    """Builtins can be wrapped, with or without a signature."""
    for builtin in (max, min):
        with pytest.raises(ValueError):
            inspect.signature(builtin)
    assert filter_jit(divmod)(7, 2) == (3, 1)
    assert filter_jit(max)(3, 5) == 5


def test_many_parameters():
    """Hundreds of parameters are bound, by position and by name."""
    names = [f"p{i}" for i in range(300)]
    namespace = {}
    exec(f"def f({', '.join(names)}): return p0, p299", namespace)
    f, traces = count_traces(namespace["f"])
    assert f(*range(300)) == (0, 299)
    assert f(**dict(zip(names, range(300), strict=True))) == (0, 299)
    assert len(traces) == 1


# --- the callable's appearance ---


def test_what_a_jitted_function_shows_of_itself():
    """Name, signature, documentation and annotations are those of the function."""

    def f(x, n=2, *, m: int = 3):
        """What it does."""

    jitted = filter_jit(f)
    assert inspect.signature(jitted) == inspect.signature(f)
    assert inspect.unwrap(jitted) is jitted.__wrapped__ is f
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        assert getattr(jitted, name) == getattr(f, name)
    assert jitted.__annotations__ == {"m": int}
    assert "f" in repr(jitted) and callable(jitted)
    assert not hasattr(filter_jit(functools.partial(f)), "__name__")


def test_annotations_are_not_evaluated():
    """They may name what is imported for type checkers alone, as Python 3.14 allows."""
    source = "def f(x: Missing): return x"
    if sys.version_info < (3, 14):
        source = f"from __future__ import annotations\n{source}"
    scope = {}
    exec(source, scope)
    assert filter_jit(scope["f"])(2) == 2


def test_a_jitted_function_is_frozen():
    """Attributes of a jitted function cannot be set or deleted."""
    f = filter_jit(lambda x: x)
    with pytest.raises(AttributeError):
        f.anything = 1
    with pytest.raises(AttributeError):
        del f.__wrapped__


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"donate": "some"}, ValueError),
        ({"donate": ["all"]}, ValueError),
        ({"asynchronous": 1}, TypeError),
        ({"donate_argnums": 0}, ValueError),
        ({"donate_argnames": "x"}, ValueError),
        ({"static_argnums": 0}, ValueError),
        ({"static_argnames": "x"}, ValueError),
        ({"nonsense": 0}, TypeError),
        *[({name: None}, ValueError) for name in ("default", "fn", "kwargs", "out")],
    ],
)
def test_options_that_are_refused(options, error):
    """What `filter_jit` decides itself, and what does not exist, is one clear error."""
    (name,) = options
    with pytest.raises(error, match=name):
        filter_jit(lambda x: x, **options)


@pytest.mark.parametrize("not_callable", [3, None, "f", jnp.ones(2)])
def test_what_cannot_be_called_is_refused(not_callable):
    """Wrapping what is no callable raises at once, as Equinox does."""
    with pytest.raises(Exception) as expected:
        eqx.filter_jit(not_callable)
    with pytest.raises(type(expected.value)):
        filter_jit(not_callable)
