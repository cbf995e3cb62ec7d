"""What can be wrapped: Modules, partials, transforms, classes, jitted functions.

Each is called like what it wraps, with the results that Equinox has.
"""

import copy
import dataclasses
import functools
import typing

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import filter_jit


X = jnp.arange(3.0)


class Scale(eqx.Module):
    w: object
    n: int = eqx.field(static=True, default=1)

    def __call__(self, x):
        return self.w * x * self.n


def _add(a, b):
    return a + b


def test_a_wrapped_module_is_a_pytree():
    """It can be mapped, partitioned, compared, differentiated and optimised."""
    f = filter_jit(Scale(jnp.array(2.0)))
    doubled = jtu.tree_map(lambda x: x * 2 if eqx.is_array(x) else x, f)
    assert doubled(X).tolist() == (4 * X).tolist()
    arrays, rest = eqx.partition(f, eqx.is_array)
    for a, b in ((arrays, rest), (copy.copy(arrays), rest), (arrays, copy.copy(rest))):
        assert eqx.combine(a, b)(X).tolist() == f(X).tolist()
    assert f == filter_jit(Scale(jnp.array(2.0))) != doubled
    grads = eqx.filter_grad(lambda f: f(X).sum())(f)
    assert [float(x) for x in jtu.tree_leaves(grads)] == [3.0]
    assert eqx.apply_updates(f, grads)(X).tolist() == (5 * X).tolist()


def test_paths_of_a_wrapped_module_are_named():
    """Key paths name the callable's fields, and no `<flat index 0>`."""
    wrapped = filter_jit(Scale(jnp.array(2.0)))
    (path,) = [jtu.keystr(path) for path, _ in jtu.tree_leaves_with_path(wrapped)]
    assert path.endswith(".w") and "flat index" not in path


def test_a_structure_error_says_which_functions_differ():
    """JAX's error about two jitted functions in one `tree.map` names them."""
    with pytest.raises(ValueError, match="_add"):
        jax.tree.map(lambda *x: x, filter_jit(jnp.sin), filter_jit(_add))


def test_equality_and_hash_of_functions():
    """Wrappers of one function with the same options are equal."""
    assert filter_jit(_add) == filter_jit(_add)
    assert hash(filter_jit(_add)) == hash(filter_jit(_add))
    assert filter_jit(_add) != filter_jit(_add, donate="all")
    assert filter_jit(_add) != filter_jit(lambda x: x)
    assert (filter_jit(_add) == 3) is False


@pytest.mark.parametrize("class_first", [True, False])
def test_a_class_and_its_instances_are_wrapped(class_first):
    """A class makes instances, an instance is called, in whatever order."""

    @dataclasses.dataclass(frozen=True)
    class Plain:
        w: typing.Any

        def __call__(self, w):
            return self.w * 10 + w

    for is_class in (class_first, not class_first):
        if is_class:
            made = filter_jit(Plain)(2)
            assert type(made) is Plain and made.w == 2
        else:
            assert filter_jit(Plain(2))(X).tolist() == (20 + X).tolist()


class WithSlots:
    """Has no weak references."""

    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 2

    def __call__(self, x):
        return x * self.factor


class WithProperty:
    """One of its properties raises, and is not asked."""

    def __call__(self, x):
        return x * 2

    @property
    def func(self):
        raise ValueError("not yet")


class Proxy:
    """Claims to be a function, as those of `wrapt` do, and is called itself."""

    def __init__(self, inner):
        self.inner = inner

    @property
    def __class__(self):
        return type(self.inner)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, *args, **kwargs):
        return self.inner(*args, **kwargs) * 2


@pytest.mark.parametrize(
    "make", [WithSlots, WithProperty, lambda: Proxy(lambda x, n=1: x * n)]
)
def test_unusual_callables(make):
    """Wrapping looks at what it needs and no further."""
    for _ in range(2):
        assert filter_jit(make())(X).tolist() == (2 * X).tolist()


def test_what_is_kept_with_a_function():
    """One private name in its `__dict__`, which a copy of that does not share."""

    def f(x):
        return x + 1

    @functools.wraps(filter_jit(f).__wrapped__)
    def g(x):
        return x + 2

    f.own = g.own = 1
    for _ in range(2):
        assert [filter_jit(f)(1), filter_jit(g)(1)] == [2, 3]
    (name,) = vars(f).keys() - {"own"}
    assert name.startswith("__") and vars(g).keys() == {name, "own", "__wrapped__"}
    assert vars(f)[name] is not vars(g)[name]
    again = cloudpickle.loads(cloudpickle.dumps(f))
    assert not vars(again)[name] and not copy.copy(vars(f)[name])
    assert filter_jit(again)(1) == filter_jit(again)(1) == 2
