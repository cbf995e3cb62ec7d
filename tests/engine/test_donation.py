"""The five modes of donation, and their warnings.

They delete the buffers that they delete under Equinox, and only the two modes named
`warn` show JAX's warning.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit


MODES = ("all", "all-except-first", "warn", "warn-except-first", "none")
_FIRST = {"all": True, "warn": True}
_REST = {mode: mode != "none" for mode in MODES}


def _deleted(*arrays):
    return [x.is_deleted() for x in arrays]


@pytest.mark.parametrize("donate", MODES)
@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_deleted(donate, ahead):
    """Donated arrays are deleted, in each call and in a compiled one."""
    f = filter_jit(lambda x, y, *, z: (x + 1, y + 1, z + 1), donate=donate)
    call = f.lower(jnp.ones(2), jnp.ones(3), z=jnp.ones(4)).compile() if ahead else f
    for _ in range(3):
        x, y, z = jnp.ones(2), jnp.ones(3), jnp.ones(4)
        out = call(x, y, z=z)
        assert [a.tolist() for a in out] == [[2.0] * n for n in (2, 3, 4)]
        rest = _REST[donate]
        assert _deleted(x, y, z) == [_FIRST.get(donate, False), rest, rest]


@pytest.mark.parametrize("donate", MODES)
@pytest.mark.parametrize("large_first", [True, False])
def test_warnings_about_buffers_that_cannot_be_used(donate, large_first):
    """Only the modes that begin with `warn` let JAX's warning through."""

    def messages(jit, call=lambda f, *args: f(*args)):
        f = jit(lambda x, y: x.sum() + y.sum(), donate=donate)
        x, y = jnp.ones(64), jnp.ones((2, 2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jit(lambda x: x.sum(), donate="all")(jnp.ones(3))  # hides its own alone
            call(f, *((x, y) if large_first else (y, x)))
        return any("donated buffers" in str(w.message) for w in caught)

    assert messages(filter_jit) == messages(eqx.filter_jit)
    for call in (
        lambda f, *args: f.lower(*args),
        lambda f, *args: (f.trace(*args), f(*args)),
    ):
        assert messages(filter_jit, call) == donate.startswith("warn")


@pytest.mark.parametrize("donate", MODES)
def test_warnings_of_the_function_itself(donate):
    """A function's other warnings are never hidden."""

    def f(x):
        warnings.warn("something else", stacklevel=1)
        return x + 1

    with pytest.warns(UserWarning, match="something else"):
        filter_jit(f, donate=donate)(jnp.ones(2))


def test_the_arrays_of_the_callable():
    """A wrapped Module counts as the first argument."""

    class Scale(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return Scale(self.w + x), x + 1

    for donate in ("all", "all-except-first", "none"):
        expected = []
        for jit in (eqx.filter_jit, filter_jit):
            w, x = jnp.ones(3), jnp.ones(3)
            jit(Scale(w), donate=donate)(x)
            expected.append(_deleted(w, x))
        assert expected[0] == expected[1]


def test_an_array_that_was_donated_cannot_be_used_again():
    """The error names the leaf, and the call that donated it. Later calls work."""

    def donating(tree):
        return tree["x"] + 1

    f = filter_jit(donating, donate="all")
    x = jnp.ones(2)
    assert f({"x": x}).tolist() == [2, 2]
    line = rf"`tree\['x'\]` was deleted.*`donating` \({__file__}:\d+\)"
    for call in (f, f, f.lower({"x": jnp.ones(2)}).compile()):
        with pytest.raises((RuntimeError, ValueError), match=line):
            call({"x": x})
    with pytest.raises((RuntimeError, ValueError), match=r"`y\[0\]` was.*`donating`"):
        filter_jit(lambda y: y[0] * 2)([x])
    assert f({"x": jnp.ones(2)}).tolist() == [2, 2]


def test_an_array_that_is_donated_twice_in_one_call():
    """XLA refuses to donate one buffer twice."""
    f = filter_jit(lambda a, b: a + b, donate="all")
    for warm in range(2):
        x = jnp.ones(3)
        with pytest.raises((RuntimeError, ValueError), match="`a` and `b` are one"):
            f(x, x)
        assert f(jnp.ones(3) * warm, jnp.ones(3)).tolist() == [warm + 1] * 3


def test_numpy_arrays_are_left_alone():
    """A NumPy array cannot be donated, and can be used afterwards."""
    f = filter_jit(lambda x: x + 1, donate="all")
    x = np.ones(3, np.float32)
    for _ in range(3):
        assert f(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_arguments_of_one_name():
    """`x` by position and `x` among `**kwargs` are two arguments."""

    @filter_jit(donate="all-except-first")
    def f(x, /, **kwargs):
        return x * 2, kwargs["x"] + 1

    x, y = jnp.ones(3), jnp.ones(3)
    a, b = f(x, x=y)
    assert (a == 2).all() and (b == 2).all()
    assert _deleted(x, y) == [False, True]


@pytest.mark.parametrize("transform", [jax.vjp, jax.linearize])
def test_a_transformed_call_may_return_what_it_donated(transform):
    """Under an eager transformation, a result may be a donated argument."""

    @filter_jit(donate="all")
    def step(x, y):
        return x, x + y

    (_, total), _ = transform(step, jnp.ones(3) * 2, jnp.ones(3))
    assert (total == 3).all()


def test_a_scalar_that_no_result_can_reuse():
    """JAX warns, and does not delete it. (Equinox's extra result would take it.)"""
    x = jnp.array(1)
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        filter_jit(lambda x: x + jnp.ones(3, jnp.int32), donate="warn")(x)
    assert not x.is_deleted()
