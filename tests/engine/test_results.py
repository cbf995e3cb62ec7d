"""Results: their types, statics, order of fields, and what two of them share.

A result has the types and the very static leaves that the function returned.
"""

import collections
import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Inner, Node, Pair
from tests.support.same import assert_same
from tests.support.traces import count_traces


X = jnp.arange(3.0)


class WithNew(collections.namedtuple("WithNew", "x name")):
    """Has a `__new__` of its own, with a default."""

    def __new__(cls, x, name="counted"):
        return super().__new__(cls, x, name)


@jtu.register_dataclass
@dataclasses.dataclass
class Data:
    x: object
    tag: object = dataclasses.field(default="t", metadata={"static": True})


class Ordered(eqx.Module):
    """Its fields are not in alphabetical order, and one has a default."""

    b: object
    name: str = eqx.field(static=True)
    a: object = None


class WithInit(eqx.Module):
    """Its `__init__` takes something else, and is not called for results."""

    x: object

    def __init__(self, size):
        self.x = jnp.ones(size)


class WithClassDefault(eqx.Module):
    """Its `__init__` leaves a field to the default, which only its class has."""

    x: object
    scale: object = 2

    def __init__(self, x):
        self.x = x


SENTINEL = object()
MAKES = {
    "array": lambda x: x,
    "static": lambda x: "text",
    "tuple": lambda x: (x, 1, None, "s", (2.5, [True])),
    "namedtuple with a __new__": lambda x: WithNew(x),
    "Module": lambda x: Ordered(x, "n", {"k": x}),
    "Module with an __init__": lambda x: eqx.tree_at(lambda m: m.x, WithInit(3), x),
    "static field": lambda x: Holder(x, (1, "a", jnp.tanh)),
    "dataclass": lambda x: Data(x, (1, 2)),
    "node": lambda x: Node([x, 2], "aux"),
    "partial": lambda x: eqx.Partial(jnp.add, x),
    "optimiser": lambda x: optax.adam(1e-3).init({"w": x}),
    "functions": lambda x: (jnp.tanh, Pair, int, SENTINEL),
    "jitted": lambda x: filter_jit(eqx.nn.Lambda(jnp.tanh)),
    "one array 300 times": lambda x: [x[0]] * 300,
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_what_a_function_returns(make):
    """Structure, types and leaves are its own, in each call."""
    expected = make(X)
    f, traces = count_traces(make)
    for _ in range(3):
        assert_same(f(X), expected)
    assert len(traces) == 1


def test_statics_are_the_very_objects_of_the_trace():
    """What is no array is returned as it was when the function was traced."""
    things = [object(), [1], "a" * 100]
    f = filter_jit(lambda x: Holder(x, (things, SENTINEL)))
    for _ in range(3):
        assert f(X).static[0] is things and f(X).static[1] is SENTINEL


def test_a_field_that_only_the_class_has():
    """It is not set in results either, so that its value is that of the class."""

    def double(m):
        return WithClassDefault(m.x * m.scale)

    f = filter_jit(double)
    expected = eqx.filter_jit(double)(WithClassDefault(X))
    model = WithClassDefault(X)
    for _ in range(3):
        model = f(model)
        assert model.scale == 2 and vars(model).keys() == vars(expected).keys()
    np.testing.assert_array_equal(model.x, 8 * X)


def test_fields_are_in_their_order():
    """A Module's fields are in the order of Equinox's result."""
    expected = list(vars(eqx.filter_jit(lambda m: m)(Ordered(X, "n"))))
    f = filter_jit(lambda m: m)
    model = Ordered(X, "n")
    for _ in range(5):
        model = f(model)
        assert list(vars(model)) == expected


def test_results_share_no_container():
    """Lists, dictionaries and Modules of one result are not those of the next."""
    f = filter_jit(lambda x: {"list": [x, [1]], "dict": {"k": x}, "module": Inner([x])})
    for _ in range(4):
        out = f(X)
        assert len(out["list"]) == 2 and out["list"][1] == [1]
        assert list(out) == ["dict", "list", "module"]
        assert len(out["module"].value) == 1
        out["list"].append(1), out["list"][1].append(2)
        out["dict"]["more"] = out["more"] = 3
        out["module"].value.append(4)


def test_checks_run_when_the_function_is_traced():
    """`__check_init__` is the function's own; results are not checked again."""
    checked = []

    class Checked(eqx.Module):
        x: object

        def __check_init__(self):
            checked.append(self.x)

    f = filter_jit(lambda x: Checked(x * 2))
    for _ in range(3):
        assert f(X).x.tolist() == (2 * X).tolist()
    assert len(checked) == 1


def test_results_whose_classes_check_their_parts():
    """A class that refuses anything but arrays is given arrays."""

    class Checks:
        def __init__(self, x):
            assert isinstance(x, jax.Array | jax.ShapeDtypeStruct | None), type(x)
            self.x = x

    jtu.register_pytree_node(
        Checks, lambda c: ((c.x,), None), lambda _, xs: Checks(*xs)
    )
    for around in (lambda c: c, Inner, lambda c: [c, {"k": Inner([c])}]):
        f = filter_jit(lambda around=around: around(Checks(X)))
        for out in (f(), f(), f.lower().compile()(), f.eval_shape()):
            assert jtu.tree_structure(out) == jtu.tree_structure(around(Checks(X)))


def test_arguments_and_results_that_are_nested_deeply():
    """They may be as deep as under Equinox, which JAX's own functions build."""
    deep = functools.reduce(lambda inner, _: [inner], range(800), X)
    f, traces = count_traces(lambda tree: tree)
    for _ in range(2):
        out = f(deep)
        for _ in range(800):
            (out,) = out
        assert jnp.array_equal(out, X)
    assert len(traces) == 1
