"""Regression tests: faults found in a review of trees that are not read again."""

import dataclasses
import gc
import sys
import typing
import weakref

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import filter_jit


X = jnp.arange(3.0)
# After which a tree is learnt.
CALLS = 20
HAS_VERSIONS = sys.version_info < (3, 13)


class Leaf(eqx.Module):
    w: typing.Any
    n: typing.Any = eqx.field(static=True, default=1)


@jtu.register_dataclass
@dataclasses.dataclass
class State:
    model: typing.Any
    step: typing.Any


class Box:
    def __init__(self, do):
        self.do = do


jtu.register_pytree_node(Box, lambda b: ((b.do(),), None), lambda _, c: Box(None))


@pytest.mark.one_engine  # (the reference says itself what it reads)
def test_a_static_that_shares_its_parts():
    # Each of its 2^50 parts was learnt for itself.
    static = ()
    for _ in range(50):
        static = (static, static)
    tree = Leaf(X)
    object.__setattr__(tree, "n", static)  # Equinox would look for arrays in each
    f = filter_jit(lambda t: t.w)
    for _ in range(CALLS):
        f(tree)


@pytest.mark.parametrize("when", (1, 2, *range(14, 20)))
def test_a_tree_that_is_dropped_while_the_rest_is_read(engine, when):
    # After which it was learnt.
    trees = [Leaf([X + i for i in range(9)])]
    armed, n_calls = False, 0

    def do():
        nonlocal n_calls
        n_calls += armed
        if armed and n_calls == when:
            trees.clear()
        return X

    box = Box(do)
    f = filter_jit(lambda trees, box: len(trees))
    f(trees, box)  # (which is flattened more than once)
    armed = True
    for _ in range(when):
        assert f(trees, box) == 1
    assert trees == []


def test_trees_that_are_held_by_a_call_alone(engine):
    # Four calls with a Module that has died in each, of which the dictionary lives.
    values = dict(vars(Leaf(X)))

    def do():
        tree = object.__new__(Leaf)
        object.__setattr__(tree, "__dict__", values)
        return tree

    f = filter_jit(lambda box: X)
    for _ in range(2 * CALLS):
        f(Box(do))
    tree = do()
    alive = weakref.ref(tree)
    g = filter_jit(lambda tree: tree.w)
    for _ in range(2 * CALLS):
        g(tree)
    del tree
    gc.collect()
    assert alive() is None


def put(state, value):
    state.step = value


armed: typing.Any = None


class Calls(eqx.Module):
    w: typing.Any

    def __del__(self):
        if armed is not None:
            armed(None)


OLD = {
    "array": lambda: X + 5,
    "module": lambda: Leaf(X + 5),
    "finalizer": lambda: Calls(X + 5),
    "list": lambda: [(X + 5, Calls(X))],
    "dict": lambda: {"a": X + 5, "b": Calls(X)},
}


@pytest.mark.parametrize("is_dict", [False, True])
@pytest.mark.parametrize("kind", OLD)
def test_a_call_from_what_is_being_replaced(engine, kind, is_dict):
    # Python writes `state.step = value`, drops what was there, and only then gives the
    # dictionary its new version: the call had the old value, or a dead one.
    global armed

    def make(value):
        state = State(X, value)
        state.__dict__ = dict(vars(state))
        return state

    for i in range(100):  # now Python writes to the dictionary directly
        put(make(i), i)
    f = filter_jit(lambda t: jtu.tree_leaves(t)[-1])
    state = make(OLD[kind]())
    tree = vars(state) if is_dict else state
    for _ in range(CALLS):
        f(tree)
    got = []

    def call(_):
        got.append(f(tree).tolist())

    callback = weakref.ref(state.step, call) if kind in ("array", "module") else None
    armed = call
    try:
        put(state, X + 10)
    finally:
        armed = None
    assert got == [[10, 11, 12]], callback
    assert f(tree).tolist() == [10, 11, 12]


class Dies:
    def __del__(self):
        if armed is not None:
            armed(None)


def test_a_call_from_deep_within_what_is_being_replaced(engine):
    # Python frees what is outside first, and then what is 50 levels within.
    global armed
    f = filter_jit(lambda t: t.step.step)
    state, old, deep = State(X, None), State(X, X + 5), Dies()
    for _ in range(100):
        deep = [deep]
    old.deep = deep
    state.__dict__ = {"model": X, "step": old}
    del deep, old
    for _ in range(100):
        put(state, state.step)
    for _ in range(CALLS):
        f(state)
    got = []

    def call(_):
        got.append(f(state).tolist())

    armed = call
    try:
        put(state, State(X, X + 10))
    finally:
        armed = None
    assert got == [[10, 11, 12]]


@pytest.mark.one_engine
def test_what_has_changed_is_not_compared_again():
    f = filter_jit(lambda t: t.w[0])
    tree = Leaf([X, X])
    for _ in range(CALLS):
        f(tree)
    spec = f._function.table.get(f._function, (tree,))
    assert spec.n_known == int(HAS_VERSIONS)
    tree.w[1] = X + 1
    f(tree)
    assert spec.n_known == 0
