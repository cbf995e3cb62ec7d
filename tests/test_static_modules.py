"""Modules in static fields: when two are equal, and what is kept, on both engines."""

import collections
import functools
import gc
import math
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import filter_jit


pytestmark = pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
X = jnp.ones(3)


class Holder(eqx.Module):
    x: jax.Array
    static: object = eqx.field(static=True)


class Part(eqx.Module):
    """Has a dynamic and a static field, which can hold anything."""

    dynamic: object = None
    static: object = eqx.field(static=True, default=None)


class Other(Part):
    pass


class Node:
    def __init__(self, children, aux):
        self.children, self.aux = children, aux


jtu.register_pytree_node(
    Node, lambda n: (n.children, n.aux), lambda aux, children: Node(children, aux)
)


def _traces(*statics):
    """The number of traces of a function after a call with each static."""
    traces = []

    @filter_jit
    def f(holder):
        traces.append(1)
        return holder.x

    out = []
    for static in statics:
        f(Holder(X, static))
        out.append(len(traces))
    return out


def _array(*values, dtype="float32"):
    return jnp.asarray(values, dtype)


class _Act:
    def apply(self, x):
        return x

    def apply_twice(self, x):
        return x


ACT, OTHER_ACT = _Act(), _Act()

# Pairs of functions: values from one are equal, and values from both are different.
DIFFERENT = {
    "arrays": (lambda: Part(_array(1, 2)), lambda: Part(_array(1, 3))),
    "dtypes": (lambda: Part(_array(1)), lambda: Part(_array(1, dtype="int32"))),
    "shapes": (lambda: Part(_array(1, 1)), lambda: Part(_array(1, 1).reshape(1, 2))),
    "zeros": (lambda: Part(_array(0.0)), lambda: Part(_array(-0.0))),
    "weak types": (lambda: Part(_array(1.0)), lambda: Part(jnp.add(_weak(), _weak()))),
    "numpy": (lambda: Part(np.ones(2)), lambda: Part(jnp.ones(2))),
    "numpy contents": (lambda: Part(np.ones(2)), lambda: Part(np.zeros(2))),
    "keys": (lambda: Part(jax.random.key(1)), lambda: Part(jax.random.key(2))),
    "classes": (lambda: Part(1), lambda: Other(1)),
    "ints": (lambda: Part(1), lambda: Part(1.0)),
    "bools": (lambda: Part([1]), lambda: Part([True])),
    "static ints": (lambda: Part(None, [1]), lambda: Part(None, [True])),
    "fields": (lambda: Part(1, 2), lambda: Part(2, 1)),
    "containers": (lambda: Part((1, [2])), lambda: Part([1, (2,)])),
    "nesting": (lambda: Part([[1], [2, ()]]), lambda: Part([[1, [2]], ()])),
    "dictionaries": (lambda: Part({"a": [1]}), lambda: Part({"b": [1]})),
    "keys of them": (lambda: Part({1: [X[:1]]}), lambda: Part({True: [X[:1]]})),
    "order as a static": (
        lambda: Part(None, {"a": [1], "b": [2]}),
        lambda: Part(None, {"b": [2], "a": [1]}),
    ),
    "ordered": (
        lambda: Part(collections.OrderedDict(a=[1], b=[2])),
        lambda: Part(collections.OrderedDict(b=[2], a=[1])),
    ),
    "nodes": (lambda: Part(Node([1], 2)), lambda: Part(Node([2], 1))),
    "static data": (lambda: Part(Node([X], [1])), lambda: Part(Node([X], [1.0]))),
    "inner": (lambda: Part(Part([1]), Part([2])), lambda: Part(Part([2]), Part([1]))),
    "functions": (lambda: Part(math.sin), lambda: Part(math.cos)),
    "methods": (lambda: Part(ACT.apply), lambda: Part(ACT.apply_twice)),
    "bound objects": (lambda: Part(ACT.apply), lambda: Part(OTHER_ACT.apply)),
    "static methods": (lambda: Part(0, ACT.apply), lambda: Part(0, OTHER_ACT.apply)),
    "sets": (lambda: Part(0, {"a", "b"}), lambda: Part(0, {"a", "c"})),
    "sets by type": (lambda: Part(0, {1, (1,)}), lambda: Part(0, {1, (True,)})),
    "frozensets": (lambda: Part(0, {"a"}), lambda: Part(0, frozenset({"a"}))),
    "sets of sets": (
        lambda: Part(0, {frozenset({1})}),
        lambda: Part(0, {frozenset({1.0})}),
    ),
    "partials": (
        lambda: eqx.Partial(jnp.add, _array(1)),
        lambda: eqx.Partial(jnp.add, _array(2)),
    ),
    "struct": (
        lambda: Part(jax.ShapeDtypeStruct((1,), "float32")),
        lambda: Part(jax.ShapeDtypeStruct((2,), "float32")),
    ),
}


def _weak():
    return jax.lax.full((1,), 0.5)


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize(
    "around", [lambda x: x, lambda x: [x], lambda x: {"k": (x, x)}]
)
def test_same_and_different(name, around):
    a, b = DIFFERENT[name]
    if name == "functions":
        assert a().dynamic is not b().dynamic
    statics = [around(make()) for make in (a, a, b, b, a)]
    assert _traces(*statics) == [1, 1, 2, 2, 2]


def test_the_values_of_the_call_are_what_is_traced():
    f = filter_jit(lambda h: h.static(h.x))
    nets = [eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(i)) for i in (0, 1, 0)]
    for net in nets:
        assert jnp.allclose(f(Holder(X, net)), net(X))


@pytest.mark.parametrize("where", ["dynamic", "static"])
def test_changes_in_place_are_seen(where):
    f = filter_jit(lambda h: h.x + sum(getattr(h.static, where)))
    values = [1, 2]
    h = Holder(X, Part(**{where: values}))
    assert f(h)[0] == 4
    values[0] = 5
    assert f(h)[0] == 8
    # Equal to the list's old value, but the trace refers to the list itself.
    assert f(Holder(X, Part(**{where: [1, 2]})))[0] == 4


def test_a_numpy_array_that_is_filled_again():
    f = filter_jit(lambda h: h.x + h.static.dynamic)
    buffer = np.zeros(3, np.float32)
    for i in (1, 2, 1):
        buffer[:] = i
        assert f(Holder(X, Part(buffer)))[0] == 1 + i


def test_a_set_that_is_changed():
    f = filter_jit(lambda h: h.x * len(h.static))
    names = {"a"}
    h = Holder(X, names)
    assert f(h)[0] == 1
    names.add("b")
    assert f(h)[0] == 2
    assert f(Holder(X, {"a"}))[0] == 1


class Link(eqx.Module):
    """A linked list, so that nesting can exceed Python's recursion limit."""

    n: int
    rest: object = eqx.field(static=True, default=None)


def _chain(n):
    return functools.reduce(lambda rest, i: Link(i, rest), range(n), None)


def _ladder(n):
    """Each part is used twice, so the number of paths is exponential in the depth."""
    return functools.reduce(lambda x, _: Part(0, (x, [x])), range(n), Part([1]))


@pytest.mark.parametrize(
    "make", [_chain, _ladder], ids=["deeper than Python's limit", "shared parts"]
)
def test_deep_modules(make):
    assert _traces(make(2000), make(2000), make(1999)) == [1, 1, 2]


class Child(eqx.Module):
    weight: object
    parent: list = eqx.field(static=True)


def _family(weight):
    parent = []
    child = Child(weight, parent)
    parent.append(child)
    return child


def test_a_module_that_contains_itself():
    assert _traces(_family([1]), _family([1]), _family([2])) == [1, 1, 2]


def test_a_list_that_contains_itself():
    """The list is changed after its Module was created, when Equinox checks fields."""
    traces = []
    f = filter_jit(lambda h: (traces.append(1), h.x)[1])
    holders = [Holder(X, Part([1])) for _ in range(2)]
    for h in holders:
        h.static.dynamic.append(h.static.dynamic)
    for h in holders:
        f(h)
    assert len(traces) == 1


def test_a_class_that_becomes_a_node():
    class Late:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return type(other) is Late

        __hash__ = None

    statics = [Part(Late(n)) for n in (1, 2)]
    assert _traces(*statics) == [1, 1]
    jtu.register_pytree_node(Late, lambda x: ((x.n,), None), lambda _, c: Late(*c))
    assert _traces(*statics, *statics) == [1, 2, 2, 2]


class Many(eqx.Module):
    """Has more fields than the native engine reserves room for; sorted by name."""

    __annotations__ = {f"f{i:02}": object for i in range(60)}


def test_many_fields():
    def make(last):
        return Many(*([[i] for i in range(59)]), last)

    assert _traces(make([1]), make([1]), make([1.0])) == [1, 1, 2]


def test_a_module_with_fields_missing():
    def make(value):
        out = object.__new__(Part)
        object.__setattr__(out, "dynamic", value)
        return out

    assert _traces(make([1]), make([1]), make([2]), Part([1])) == [1, 1, 2, 3]


def test_a_flatten_function_that_raises():
    class Bad:
        pass

    def flatten(x):
        raise ValueError("not to be flattened")

    jtu.register_pytree_node(Bad, flatten, lambda *_: Bad())
    for _ in range(2):
        with pytest.raises(ValueError, match="not to be flattened"):
            _traces(Part(Bad()))


def test_what_a_static_module_keeps_alive():
    """Nothing once the cache is cleared, not even its arrays."""
    f = filter_jit(lambda h: h.x)

    def make(value):
        part = Part(jnp.full(3, value), Part([value]))
        f(Holder(X, part))
        return weakref.ref(part), weakref.ref(part.dynamic)

    refs = [make(float(i)) for i in range(3)]
    f.clear_cache()
    gc.collect()
    assert [r() for pair in refs for r in pair] == [None] * 6


def test_static_modules_of_many_layers():
    """Equal models with 30 layers share a trace; a model that differs adds one."""

    def layers(seed):
        keys = jax.random.split(jax.random.key(seed), 30)
        return [Part({"w": k}, Part(("norm", [i]))) for i, k in enumerate(keys)]

    assert _traces(layers(0), layers(0), layers(1)) == [1, 1, 2]
