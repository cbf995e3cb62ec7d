"""How arguments become parameters: signatures, defaults, names in messages."""

import functools as ft
import inspect
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit._errors import UnhashableStaticError


X = jnp.array(2.0)


# --- signatures and defaults ---------------------------------------------------------


def test_a_signature_that_is_not_the_functions_own():
    """Omitted arguments stay omitted: the function may check what it was passed."""

    def f(*args, n=5):
        return args[0] * len(args) * n

    f.__signature__ = inspect.signature(lambda x, n=3: None)
    for jit in (eqx.filter_jit, filter_jit):
        assert jit(f)(X) == 10
        assert jit(f)(X, 7) == 20
        with pytest.raises(TypeError, match=r"too many|takes from"):
            jit(f)(X, 7, 8)


def test_a_default_of_a_keyword_is_no_other_call():
    traces = []

    @filter_jit
    def f(x, n=2, *, m=10):
        traces.append((n, m))
        return x * n + m

    outs = [f(X), f(X, m=10), f(X, 2, m=10), f(m=10, n=2, x=X)]
    assert outs == [14] * 4 and traces == [(2, 10)]
    # Defaults are compared by type and value, like all statics.
    assert f(X, m=10.0) == 14 and traces == [(2, 10), (2, 10.0)]


@pytest.mark.parametrize("change", ["item", "dict", "none"])
def test_keyword_defaults_that_are_changed(change):
    def f(x, *, m=10):
        return x + m

    jitted = filter_jit(f)
    assert jitted(X) == 12
    if change == "item":
        f.__kwdefaults__["m"] = 20
    elif change == "dict":
        f.__kwdefaults__ = {"m": 20}
    else:
        f.__kwdefaults__ = None
        with pytest.raises(TypeError, match=r"f\(\) missing .*'m'"):
            jitted(X)
        return
    assert jitted(X) == 22
    assert jitted(X, m=1) == 3


def test_what_a_jitted_function_shows_of_itself():
    def f(x, n=2, *, m: int = 3):
        """What it does."""

    jitted = filter_jit(f)
    assert inspect.signature(jitted) == inspect.signature(f)
    assert jitted.__name__ == "f" and jitted.__doc__ == "What it does."
    assert jitted.__qualname__ == f.__qualname__ and jitted.__module__ == __name__
    assert jitted.__annotations__ == {"m": int}
    assert jitted.__wrapped__ is f


# --- names in messages ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "leaf"),
    [
        ((), {"b": {1}, "a": X}, "b"),
        ((), {"c": X, "b": [X, {1}], "a": X}, "b[1]"),
        ((X,), {"z": {1}, "b": X}, "z"),
        ((X,), {"z": X, "y": {"k": {1}}, "b": X}, "y['k']"),
        ((X, X, X, {1}), {}, "rest[0]"),
        ((X, X, X, X, [{1}]), {"z": X, "k": X}, "rest[1][0]"),
    ],
)
def test_the_leaf_that_is_not_hashable(args, kwargs, leaf):
    @filter_jit
    def f(a, b=1, c=2, *rest, **others):
        return a

    with pytest.raises(UnhashableStaticError) as info:
        f(*args, **kwargs)
    assert f"In a call of f, `{leaf}` is a set, which is not an array" in str(
        info.value
    )


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        (3, 1, "`xs[1]` is missing."),
        (3, 2, "`xs[2]` is missing."),
        (1, 3, "`xs[1]` is new."),
        (2, 3, "`xs[2]` is new."),
        (4, 0, "`xs[0]` is missing."),
    ],
)
def test_the_first_leaf_that_is_missing_or_was_not_there(was, now, message):
    compiled = filter_jit(lambda *, xs: jnp.sum(jnp.stack([X, *xs])))
    compiled = compiled.lower(xs=[X] * was).compile()
    with pytest.raises(TypeError) as info:
        compiled(xs=[X] * now)
    assert str(info.value).endswith(f"than it was lowered for: {message}")
    assert compiled(xs=[X] * was) == 2 * (was + 1)


def test_the_first_leaf_that_differs():
    f = filter_jit(lambda a, b: a[0])
    compiled = f.lower([X], {"k": 1, "l": X}).compile()
    for args, message in (
        (([X], {"k": 2, "l": X}), "the static `b['k']` was 1 and is now 2."),
        (([X], {"k": True, "l": X}), "the static `b['k']` was 1 and is now True."),
        (([X], {"k": 1, "l": 3}), "`b['l']` was an array and is now static."),
        (([X], {"k": X, "l": X}), "`b['k']` was the static 1 and is now an array."),
        (([X], {"k": 1, "m": X}), "expected `b['l']`, got `b['m']`."),
        (([X[None]], {"k": 1, "l": X}), "`a[0]` was float32[] and is now float32[1]."),
    ):
        with pytest.raises(TypeError) as info:
            compiled(*args)
        assert str(info.value).endswith(f"lowered for: {message}")


# --- statics -------------------------------------------------------------------------


class Holder(eqx.Module):
    x: jax.Array
    table: dict = eqx.field(static=True)


def test_a_hundred_functions_in_a_static_dictionary():
    traces = []

    @filter_jit
    def f(holder):
        traces.append(1)
        return sum(g(holder.x) for g in holder.table.values())

    def scaled(n):
        return lambda x: x * n

    functions = {f"f{n}": scaled(n) for n in range(100)}
    for _ in range(3):
        assert f(Holder(X, dict(functions))) == 2 * 4950
    assert len(traces) == 1
    # A different function in any place is a cache miss, and the original one is still a
    # cache hit.
    for name in ("f0", "f50", "f99"):
        other = {**functions, name: scaled(0)}
        assert f(Holder(X, other)) == 2 * (4950 - int(name[1:]))
        assert f(Holder(X, dict(functions))) == 2 * 4950
    assert len(traces) == 4
    # A dictionary with one entry less is a cache miss.
    assert f(Holder(X, {k: functions[k] for k in list(functions)[:99]})) == 2 * 4851
    assert len(traces) == 5


# --- donation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("donate", "first", "second"),
    [
        ("all", False, False),
        ("all-except-first", False, False),
        ("warn", True, True),
        ("warn-except-first", False, True),
        ("none", False, False),
    ],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_buffers_that_cannot_be_used(donate, first, second, ahead):
    """No result is large enough for XLA to reuse the donated buffer."""

    def messages(jit, large_first):
        f = jit(lambda x, y: x.sum() + y.sum(), donate=donate)
        x, y = jnp.ones(64), jnp.ones((2, 2))
        args = (x, y) if large_first else (y, x)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = f.lower(*args).compile()(*args) if ahead else f(*args)
        assert out == 68
        found = [str(w.message) for w in caught]
        return ["float32[64]" in text for text in found if "donated buffers" in text]

    for large_first, expected in ((True, first), (False, second)):
        assert any(messages(filter_jit, large_first)) is expected
        if not ahead:  # with `lower`, Equinox always warns
            assert any(messages(eqx.filter_jit, large_first)) is expected


@pytest.mark.parametrize("donate", ["all", "all-except-first", "warn", "none"])
def test_a_warning_like_that_from_the_function_itself(donate):
    """The function's own warning is hidden where Equinox hides it, and nowhere else."""

    def f(x):
        warnings.warn("Some donated buffers were not usable: others", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return x + 1

    def messages(jit):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jit(f, donate=donate)(jnp.ones(2))
        return [str(w.message) for w in caught]

    ours = messages(filter_jit)
    assert ours == messages(eqx.filter_jit)
    assert len(ours) == (1 if donate.startswith("all") else 2)


def test_partials_bind_what_is_left():
    def f(x, n, *, m=1):
        return x * n + m

    g = filter_jit(ft.partial(f, n=3))
    assert g(X) == 7 and g(X, m=2) == 8 and g(X, n=5) == 11
    with pytest.raises(TypeError, match=r"too many|takes 1|multiple values"):
        g(X, 4)


def test_a_function_that_is_wrapped_again_with_other_defaults():
    def f(x, n=1, *, m=1):
        """One."""
        return x * n * m

    assert filter_jit(f)(X) == 2
    f.__defaults__ = (5,)
    assert filter_jit(f)(X) == 10
    f.__kwdefaults__ = {"m": 3}
    assert filter_jit(f)(X) == 30
    f.__doc__ = "Two."
    again = filter_jit(f)
    assert again.__doc__ == "Two." and again(X, 2) == 12
    assert inspect.signature(again).parameters["n"].default == 5


def test_a_default_whose_class_says_that_it_is_a_tuple():
    class Meta(type):
        def __eq__(cls, other):
            return True

        __hash__ = type.__hash__

    class Default(metaclass=Meta):
        pass

    default = Default()
    f = filter_jit(lambda x, d=default: x if d is default else x + 1)
    assert f(X) == 2 and f(X, default) == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("donate_argnums", r"decides donation itself; use `donate=...`\."),
        ("donate_argnames", r"decides donation itself; use `donate=...`\."),
        ("static_argnums", "decides what is static itself; arrays are traced and"),
        ("static_argnames", "decides what is static itself; arrays are traced and"),
    ],
)
def test_what_filter_jit_decides_itself(name, text):
    with pytest.raises(ValueError, match=f"does not accept `{name}`: it {text}"):
        filter_jit(lambda x: x, **{name: 0})
