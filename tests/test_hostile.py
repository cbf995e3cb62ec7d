"""Inputs that broke an earlier version, or might."""

import collections
import dataclasses
import functools as ft
import threading
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import filter_jit


X = jnp.array(2.0)


def test_namedtuple_registered_as_another_node():
    class NT(collections.namedtuple("NT", "a b")):
        pass

    jtu.register_pytree_node(
        NT,
        lambda t: ((t.b, t.a), None),
        lambda _, children: NT(children[1], children[0]),
    )

    class M(eqx.Module):
        t: NT

    f = filter_jit(lambda m: m.t.a - 2 * m.t.b)
    one = jnp.array(1.0)
    for _ in range(60):  # the same array twice: its place does not show
        f(M(NT(one, one)))
    assert f(M(NT(jnp.array(5.0), jnp.array(3.0)))) == -1


def test_default_of_a_wrapped_function_is_not_its_own():
    def g(x, n=3):
        return x * n

    @ft.wraps(g)
    def f(x, n=5):
        return x * n

    for jit in (eqx.filter_jit, filter_jit):
        assert jit(f)(X, 3) == 6
        assert jit(f)(X) == 10


def test_value_that_equals_the_default_is_passed():
    @dataclasses.dataclass(frozen=True)
    class Config:
        a: int
        tag: float = dataclasses.field(default=1.0, compare=False)

    f = filter_jit(lambda x, c=Config(1, 1.0): x * c.tag)
    assert f(X, Config(1, 7.0)) == 14


def test_mutable_default_is_left_alone():
    def f(x, acc=[]):  # noqa: B006
        acc.append(1)
        return x * len(acc)

    g = filter_jit(f)
    assert [float(g(X, [])), float(g(X)), float(g(X, []))] == [2, 2, 2]


def test_dataclass_with_an_equality_of_its_own():
    namespace = {"dataclasses": dataclasses}
    exec(
        "@dataclasses.dataclass(eq=False)\n"
        "class C:\n"
        "    a: int\n"
        "    b = None\n"
        "    def __eq__(self, o): return (self.a, self.b) == (o.a, o.b)\n"
        "    def __hash__(self): return hash((self.a, self.b))\n",
        namespace,
    )
    f = filter_jit(lambda x, c: x * c.b)
    for b in (2, 3):
        c = namespace["C"](1)
        c.b = b
        assert f(X, c) == 2 * b


def test_wrapping_runs_the_users_code_without_a_lock():
    class M(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * x

        @property
        def func(self):
            return filter_jit(lambda x: x)

        @property
        def __wrapped__(self):
            filter_jit(lambda x: x)
            raise AttributeError

    out = []
    thread = threading.Thread(
        target=lambda: out.append(filter_jit(M(X))(X)), daemon=True
    )
    thread.start()
    thread.join(60)
    assert out == [4]


def test_property_that_raises():
    class P:
        def __call__(self, x):
            return x * 2

        @property
        def func(self):
            raise ValueError("not yet")

    assert filter_jit(P())(X) == 4


def test_front_without_its_wrapper():
    f = filter_jit(lambda x: x + 1).__call__
    assert f(X) == 3
    alive = weakref.ref(f.__wrapped__)
    del f
    assert alive() is None


def test_equality_is_not_asked_of_arguments():
    class Vec:
        def __init__(self, a):
            self.a = a

        def __eq__(self, other):
            raise RuntimeError("no eq")

        def __hash__(self):
            raise ValueError("no hash")

    jtu.register_pytree_node(Vec, lambda v: ((v.a,), None), lambda _, c: Vec(*c))
    f = filter_jit(lambda x, v=Vec(1.0), *, e=None: x * v.a)  # noqa: B008
    assert f(X) == 2
    assert f(X, Vec(X)) == 4
    assert f(X, e=Vec(X)) == 2


def test_statics_with_one_hash_and_no_equality():
    class E:
        def __init__(self, v):
            self.v = v

        def __eq__(self, other):
            raise RuntimeError("no eq")

        def __hash__(self):
            return 1

    f = filter_jit(lambda x, e: x * e.v)
    assert f(X, E(1)) == 2
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no eq"):
            f(X, E(5))


def test_cyclic_statics():
    @dataclasses.dataclass
    class Node:
        parent: object = None
        kids: list = dataclasses.field(default_factory=list)

    class M(eqx.Module):
        w: jax.Array
        c: object = eqx.field(static=True)

    traces = []
    f = filter_jit(lambda m: (traces.append(1), m.w)[1])
    root = Node()
    root.kids.append(Node(root))
    for _ in range(40):
        f(M(X, root))
    assert len(traces) == 1
    root.kids.append(3)
    f(M(X, root))
    assert len(traces) == 2


def test_unhashable_static_with_members_that_compare_by_identity():
    class Config:
        def __init__(self):
            self.sub = object()

        def __eq__(self, other):
            return self.__dict__ == other.__dict__

    class M(eqx.Module):
        w: jax.Array
        c: object = eqx.field(static=True)

    traces = []
    f = filter_jit(lambda m: (traces.append(1), m.w)[1])
    m = M(X, Config())
    for _ in range(40):
        f(m)
    assert len(traces) == 1
    f(M(X, Config()))
    assert len(traces) == 2


def test_deep_and_wide_pytrees():
    f = filter_jit(lambda tree: jtu.tree_map(lambda a: a + 1, tree))
    wide = {f"k{i}": X for i in range(2000)}
    out = f(wide)
    assert len(out) == 2000
    assert out["k7"] == 3
    deep = X
    for _ in range(300):
        deep = [deep]
    g = filter_jit(lambda tree: jtu.tree_leaves(tree)[0] + 1)
    assert g(deep) == 3
    assert g(deep) == 3


def test_enormous_static_string():
    f = filter_jit(lambda x, s: x * len(s))
    for n in (10, 100_000, 10, 100_000):
        for _ in range(3):
            assert f(X, "a" * n) == 2 * n


def test_flatten_function_that_raises_or_makes_new_arrays():
    class Fails:
        def __init__(self, fail):
            self.fail = fail

    def flatten(x):
        if x.fail:
            raise KeyError("flatten")
        return (jnp.array(3.0),), None

    jtu.register_pytree_node(Fails, flatten, lambda _, c: c[0])
    f = filter_jit(lambda x, y: x * y)
    for _ in range(3):
        assert f(X, Fails(False)) == 6
        with pytest.raises(KeyError, match="flatten"):
            f(X, Fails(True))


def test_float0_results_of_a_function_with_callbacks():
    x = np.zeros((2,), jax.dtypes.float0)
    f = filter_jit(lambda x, y: (x, eqx.error_if(y, y < 0, "negative")))
    for _ in range(3):
        out, y = f(x, X)
        assert out.dtype == jax.dtypes.float0
        assert y == 2
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(x, -X)
